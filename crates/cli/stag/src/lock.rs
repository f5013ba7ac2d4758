//! `stag lock`: who has an image's exclusive lock, and how it is taken from a client that lives.

use ceph::{ImageName, LockOwner, Login};

use crate::args;
use crate::exit::Exit;
use crate::out;
use crate::unit::Backing;

/// Shows the lock's owner, or shuts it out.
pub fn command(args: &args::Lock) -> Exit {
    let (spec, and_break) = (&args.image, args.and_break);
    let Backing::Rbd(name @ ImageName { snapshot: None, .. }) = &spec.backing else {
        say!("stag: {}: it has no lock: name an image, rbd:POOL/IMAGE", spec.backing);
        return Exit::Usage;
    };
    let login = Login { user: spec.options.ceph_user.clone(), conf: spec.options.ceph_conf.clone() };
    match ceph::lock_owner(name, login, and_break) {
        Ok(None) => out::print(&format!("rbd:{name}: nobody has its lock\n")),
        Ok(Some(LockOwner { address, is_out })) => out::print(&match (and_break, is_out) {
            (true, true) => format!("rbd:{name}: {address} had its lock, and is shut out of the cluster\n"),
            (true, false) => format!("rbd:{name}: {address} has given its lock back, and is not shut out\n"),
            (false, _) => format!("rbd:{name}: {address} has its lock\n"),
        }),
        Err(error) => {
            say!("stag: rbd:{name}: {error}");
            Exit::Failed
        }
    }
}

//! MOUNT (RFC 1813 §5) and the portmapper (RFC 1833 §3).

use nfs::{mount, v3};
use rpc::bind;
use rpc::xdr::{Reader, Xdr};

use crate::check::{Area, Check};
use crate::finding::{Verdict, expect, not_applicable, wrong};
use crate::share::{Lab, Three, fh, mounted, ok3};

const M: Area = Area::Mount;

pub(super) const CHECKS: &[Check] = &[
    Check::nfs(
        M,
        "null",
        "RFC 1813 §5.2.0",
        "NULL of MOUNT succeeds.",
        "Clients call NULL to learn whether MOUNT is served.",
        null,
    ),
    Check::nfs(
        M,
        "mnt",
        "RFC 1813 §5.2.1",
        "MNT of the export returns a handle and the flavors that it accepts.",
        "Without a handle a client of version 3 has no way in.",
        mnt,
    ),
    Check::nfs(
        M,
        "handle-is-a-directory",
        "RFC 1813 §5.2.1, §3.3.1",
        "The handle of MNT is that of a directory.",
        "Every path of the client begins at this handle.",
        handle_is_a_directory,
    ),
    Check::nfs(
        M,
        "mnt-again",
        "RFC 1813 §5.2.1, §3.3.1",
        "A second MNT leads to the same file system and file.",
        "Two mounts of one export would show different files.",
        mnt_again,
    ),
    Check::nfs(
        M,
        "unknown-path",
        "RFC 1813 §5.2.1",
        "MNT of a path that does not exist fails with NOENT or ACCES.",
        "A client would work in a directory that nobody named.",
        unknown_path,
    ),
    Check::nfs(
        M,
        "export-lists-it",
        "RFC 1813 §5.2.5",
        "EXPORT lists the export, or a directory above it.",
        "Users and automounters choose from this list.",
        export_lists_it,
    ),
    Check::nfs(
        M,
        "umnt",
        "RFC 1813 §5.2.3",
        "UMNT of the export succeeds.",
        "A client that unmounts waits for this reply.",
        umnt,
    ),
    Check::nfs(
        M,
        "dump",
        "RFC 1813 §5.2.2",
        "DUMP returns a list of mounts.",
        "Tools that show the mounts of a server call it.",
        dump,
    ),
    Check::nfs(
        M,
        "portmapper-knows-nfs",
        "RFC 1833 §3.2",
        "GETPORT of NFS version 3 over TCP returns the port of NFS.",
        "A client without a port in its options asks the portmapper.",
        portmapper_knows_nfs,
    ),
    Check::nfs(
        M,
        "portmapper-knows-mount",
        "RFC 1833 §3.2",
        "GETPORT of MOUNT over TCP returns a port that answers MOUNT.",
        "A client asks the portmapper for the port of MOUNT.",
        portmapper_knows_mount,
    ),
    Check::nfs(
        M,
        "portmapper-knows-no-other",
        "RFC 1833 §3.2",
        "GETPORT of a program that is not registered returns 0.",
        "A client would connect to the port of another program.",
        portmapper_knows_no_other,
    ),
    Check::nfs(
        M,
        "portmapper-dump",
        "RFC 1833 §3.2",
        "DUMP of the portmapper lists NFS.",
        "Tools such as rpcinfo show what a host serves.",
        portmapper_dump,
    ),
];

fn results(lab: &Lab, procedure: mount::Procedure, arguments: &[u8]) -> Verdict<Vec<u8>> {
    lab.three.clone()?;
    let answer = lab.mount()?.call((mount::PROGRAM, mount::VERSION, procedure.code()), arguments)?;
    answer.body().map(<[u8]>::to_vec)
}

fn decoded<'a, T: Xdr<'a>>(body: &'a [u8]) -> Verdict<T> {
    T::read(&mut Reader::new(body))
        .or_else(|error| wrong(format!("results that cannot be decoded: {error}"), "results"))
}

fn path_of(lab: &Lab) -> Vec<u8> {
    rpc::xdr::encode(&mount::Path::new(&lab.options.path).unwrap_or(mount::Path::EMPTY))
}

fn null(lab: &Lab) -> Verdict {
    let body = results(lab, mount::Procedure::Null, &[])?;
    expect(body.is_empty(), "no results", || format!("{} bytes of results", body.len()))
}

fn mnt(lab: &Lab) -> Verdict {
    let body = results(lab, mount::Procedure::Mnt, &path_of(lab))?;
    let found: v3::Outcome<mount::Mounted<'_>, (), mount::Status> = decoded(&body)?;
    match found {
        v3::Outcome::Ok(found) => expect(
            !found.handle.bytes().is_empty() && !found.flavors.is_empty(),
            "a handle of 1 to 64 bytes, and a flavor",
            || format!("{} bytes, {} flavors", found.handle.bytes().len(), found.flavors.len()),
        ),
        v3::Outcome::Err(status, ()) => wrong(format!("MNT: {status:?}"), "MNT3_OK"),
    }
}

fn handle_is_a_directory(lab: &Lab) -> Verdict {
    lab.three.clone()?;
    let root = mounted(&mut lab.mount()?, &lab.options.path)?;
    let mut three = Three::new(lab)?;
    let reply = three.call(&v3::Arguments::GetAttr(fh(&root)))?;
    let kind = ok3!(reply, GetAttr).kind;
    expect(kind == v3::FileType::Directory, "a directory", || format!("{kind:?}"))
}

fn mnt_again(lab: &Lab) -> Verdict {
    lab.three.clone()?;
    let mut three = Three::new(lab)?;
    let mut found = Vec::new();
    for _ in 0..2 {
        let root = mounted(&mut lab.mount()?, &lab.options.path)?;
        let reply = three.call(&v3::Arguments::GetAttr(fh(&root)))?;
        let of = ok3!(reply, GetAttr);
        found.push((of.fsid, of.fileid));
    }
    expect(found.first() == found.last(), "the same fsid and fileid", || format!("{found:x?}"))
}

fn unknown_path(lab: &Lab) -> Verdict {
    let path = [&lab.options.path[..], b"/stag-conform-is-not-there"].concat();
    let path = rpc::xdr::encode(&mount::Path::new(&path).unwrap_or(mount::Path::EMPTY));
    let body = results(lab, mount::Procedure::Mnt, &path)?;
    let found: v3::Outcome<mount::Mounted<'_>, (), mount::Status> = decoded(&body)?;
    match found {
        v3::Outcome::Err(mount::Status::NoEnt | mount::Status::Acces, ()) => Ok(()),
        v3::Outcome::Err(status, ()) => wrong(format!("MNT: {status:?}"), "NoEnt or Acces"),
        v3::Outcome::Ok(_) => wrong("MNT: MNT3_OK", "NoEnt or Acces"),
    }
}

fn export_lists_it(lab: &Lab) -> Verdict {
    let body = results(lab, mount::Procedure::Export, &[])?;
    let list: rpc::xdr::Chain<'_, mount::Export<'_>> = decoded(&body)?;
    let names: Vec<Vec<u8>> = list.iter().map(|one| one.directory.bytes().to_vec()).collect();
    let path = &lab.options.path;
    let above = |name: &Vec<u8>| {
        let name = name.strip_suffix(b"/").unwrap_or(name);
        path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
    };
    expect(names.iter().any(above), "the export in the list", || {
        let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        format!("exports {}", names.join(", "))
    })
}

fn umnt(lab: &Lab) -> Verdict {
    let body = results(lab, mount::Procedure::Umnt, &path_of(lab))?;
    expect(body.is_empty(), "no results", || format!("{} bytes of results", body.len()))
}

fn dump(lab: &Lab) -> Verdict {
    let body = results(lab, mount::Procedure::Dump, &[])?;
    decoded::<rpc::xdr::Chain<'_, mount::Mount<'_>>>(&body).map(|_| ())
}

/// The port that the portmapper has for a program, over TCP.
fn port(lab: &Lab, program: u32, version: u32) -> Verdict<u32> {
    lab.three.clone()?;
    let mapping = bind::Mapping { program, version, protocol: bind::TCP, port: 0 };
    let number = (bind::PROGRAM, bind::v2::VERSION, bind::v2::Procedure::GetPort.code());
    let answer = lab.portmapper()?.call(number, &rpc::xdr::encode(&mapping))?;
    decoded(answer.body()?)
}

fn portmapper_knows_nfs(lab: &Lab) -> Verdict {
    let port = port(lab, v3::PROGRAM, v3::VERSION)?;
    expect(port == u32::from(lab.options.port), format!("port {}", lab.options.port), || {
        format!("port {port}")
    })
}

fn portmapper_knows_mount(lab: &Lab) -> Verdict {
    let port = port(lab, mount::PROGRAM, mount::VERSION)?;
    let Some(port) = u16::try_from(port).ok().filter(|port| *port != 0) else {
        return wrong(format!("port {port}"), "a port");
    };
    lab.connect_to(port)?.call((mount::PROGRAM, mount::VERSION, 0), &[])?.body().map(|_| ())
}

fn portmapper_knows_no_other(lab: &Lab) -> Verdict {
    let port = port(lab, 0x3fff_fff0, 1)?;
    expect(port == 0, "port 0", || format!("port {port}"))
}

fn portmapper_dump(lab: &Lab) -> Verdict {
    lab.three.clone()?;
    let number = (bind::PROGRAM, bind::v2::VERSION, bind::v2::Procedure::Dump.code());
    let answer = lab.portmapper()?.call(number, &[])?;
    if answer.told() == "PROC_UNAVAIL" {
        return not_applicable("the portmapper has no DUMP");
    }
    let list: rpc::xdr::Chain<'_, bind::Mapping> = decoded(answer.body()?)?;
    let found = list.iter().any(|one| one.program == v3::PROGRAM && one.protocol == bind::TCP);
    expect(found, "an entry of NFS over TCP", || "no such entry".to_owned())
}

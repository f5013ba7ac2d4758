//! Landlock: the files and directories that the daemon can reach.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::config::Config;

/// The newest rights that the rules name. Older kernels enforce those that they know.
const RIGHTS: ABI = ABI::V5;

/// Paths that the daemon reads besides its configuration: libraries (RDMA's are loaded on demand),
/// names of hosts and users, time zones, Ceph's configuration and keyrings, sysfs and procfs, and
/// the random numbers that libcryptsetup opens.
const READ: [&str; 22] = [
    "/usr",
    "/lib",
    "/lib64",
    "/proc",
    "/sys",
    "/etc/ld.so.cache",
    "/etc/iscsi/initiatorname.iscsi",
    "/etc/libibverbs.d",
    "/etc/ceph",
    "/etc/group",
    "/etc/passwd",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/localtime",
    "/etc/machine-id",
    "/dev/disk",
    "/dev/random",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
    "/var/lib/sss",
];

/// Paths that the daemon writes besides units: RDMA devices, /dev/null and the like.
const WRITE: [&str; 4] = ["/dev/infiniband", "/dev/null", "/dev/zero", "/dev/urandom"];

/// The reason why nothing is enforced.
#[derive(Debug, thiserror::Error)]
pub enum DirectoriesError {
    /// The kernel has no Landlock, or it is switched off.
    #[error("this kernel has no Landlock")]
    Absent,
    /// It refuses the rules.
    #[error(transparent)]
    Rules(#[from] RulesetError),
}

/// The files and directories that a daemon reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directories {
    write: Vec<PathBuf>,
    read: Vec<PathBuf>,
}

impl Directories {
    /// The directories of `config`, and those that the process itself writes to and reads.
    pub fn of(config: &Config, own_write: &[PathBuf], own_read: &[PathBuf]) -> Self {
        let mut write: Vec<PathBuf> = WRITE.map(PathBuf::from).to_vec();
        write.extend_from_slice(own_write);
        write.extend(config.daemon.sandbox_directories.iter().cloned());
        // Both the symbolic link and its target: files are kept beside both.
        write.extend(paths(config).flat_map(|path| [room(path), room(&resolved(path))]));
        let mut read: Vec<PathBuf> = READ.map(PathBuf::from).to_vec();
        read.extend_from_slice(own_read);
        read.extend(config.secret_files.iter().map(|path| room(path)));
        let tls = config.http.iter().flat_map(|http| [&http.certificate, &http.key]).flatten();
        // A renewed certificate may be another file, to which the same link leads.
        read.extend(tls.flat_map(|path| [room(path), room(&resolved(path))]));
        read.extend(config.gateways.iter().filter_map(|group| group.ceph_conf.as_deref()).map(room));
        let units = config.targets.iter().flat_map(|target| &target.units);
        read.extend(units.flat_map(|unit| {
            let options = &unit.spec.options;
            let paths = [&options.ceph_conf, &options.luks_key_file, &options.far_secret_file];
            paths.into_iter().flatten().map(|path| room(path))
        }));
        for list in [&mut write, &mut read] {
            list.sort();
            list.dedup();
        }
        Self { write, read }
    }

    /// Paths that may be read and written.
    pub fn writable(&self) -> &[PathBuf] {
        &self.write
    }

    /// The first path of `config` that is in none of the directories. Paths that `now` has
    /// too are not looked at: each costs system calls, and there may be thousands.
    pub fn first_outside<'a>(&self, config: &'a Config, now: &Config) -> Option<&'a Path> {
        let known: HashSet<&Path> = paths(now).collect();
        let rooms: Vec<PathBuf> = self.write.iter().map(|room| resolved(room)).collect();
        let reached = |path: &Path| {
            let path = resolved(path);
            rooms.iter().any(|room| path.starts_with(room))
        };
        paths(config).find(|path| !known.contains(path) && !reached(path))
    }

    /// Confines the calling thread, and all that it starts from now on.
    ///
    /// # Errors
    /// Nothing is enforced.
    pub fn enforce(&self) -> Result<(), DirectoriesError> {
        let all = AccessFs::from_all(RIGHTS) & !AccessFs::Execute;
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(RIGHTS))?
            .scope(Scope::Signal)?
            .create()?;
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let lists = [(&self.write, all), (&self.read, read)];
        for (path, rights) in
            lists.into_iter().flat_map(|(list, rights)| list.iter().map(move |p| (p, rights)))
        {
            // A missing path needs no rule.
            let Ok(opened) = PathFd::new(path) else { continue };
            let rights = if path.is_dir() { rights } else { rights & of_files() };
            rules = rules.add_rule(PathBeneath::new(opened, rights))?;
        }
        match rules.restrict_self()?.ruleset {
            RulesetStatus::NotEnforced => Err(DirectoriesError::Absent),
            RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
        }
    }
}

/// The rights that a rule for a single file may have.
fn of_files() -> BitFlags<AccessFs> {
    AccessFs::from_file(RIGHTS)
}

/// Every file and directory that `config` has units read or write.
fn paths(config: &Config) -> impl Iterator<Item = &Path> {
    let units = config
        .targets
        .iter()
        .flat_map(|target| &target.units)
        .flat_map(|unit| unit.spec.backing.path().into_iter().chain(unit.spec.options.aptpl.as_deref()));
    let kept = config.targets.iter().filter_map(|target| target.alua.as_ref()?.keep.as_deref());
    units.chain(kept).chain(config.exports.iter().filter_map(|export| export.shown.below()))
}

/// The path to permit for `path`. A device is permitted itself. A file is permitted with its
/// directory, since other files are kept beside it and it may have to be created.
fn room(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if path.starts_with("/dev") && !path.is_dir() || parent == Path::new("/") => {
            path.to_owned()
        }
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}

/// `path` with symbolic links resolved, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(whole) = path.canonicalize() {
        return whole;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => resolved(Path::new(".")).join(name),
        (Some(parent), Some(name)) => resolved(parent).join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Lun, Target};

    fn serving(path: &Path) -> Config {
        let spec = crate::unit::parse(&path.display().to_string()).unwrap();
        let target = Target { units: vec![Lun { lun: 0, spec }], ..Target::default() };
        Config { targets: vec![target], ..Config::default() }
    }

    #[test]
    fn a_confined_thread_reaches_the_directories_of_its_units_alone() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let config = serving(&inside.path().join("disk.img"));
        let (file, secret) = (inside.path().join("disk.img"), outside.path().join("secret"));
        let reached = std::thread::spawn(move || {
            Directories::of(&config, &[], &[]).enforce().unwrap();
            let kind = |result: std::io::Result<()>| result.map_err(|error| error.kind());
            let moved = std::fs::rename(&file, secret.with_file_name("moved"));
            [kind(std::fs::write(&file, "data")), kind(std::fs::read(&secret).map(drop)), kind(moved)]
        });
        let denied = Err(std::io::ErrorKind::PermissionDenied);
        assert_eq!(reached.join().unwrap()[..2], [Ok(()), denied]);
        assert!(inside.path().join("disk.img").exists(), "nothing leaves its directory");
    }

    #[test]
    fn a_unit_that_a_link_names_is_reached() {
        let (inside, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (file, link) = (elsewhere.path().join("disk.img"), inside.path().join("link.img"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let config = serving(&link);
        let written = std::thread::spawn(move || {
            Directories::of(&config, &[], &[]).enforce().unwrap();
            std::fs::write(&link, "new").map_err(|error| error.kind())
        });
        assert_eq!(written.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_unit_elsewhere_is_out_of_reach_through_links_too() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let now = serving(&inside.path().join("a.img"));
        let before = Directories::of(&now, &[], &[]);
        assert_eq!(before.first_outside(&serving(&inside.path().join("below/b.img")), &now), None);
        let elsewhere = outside.path().join("b.img");
        assert_eq!(before.first_outside(&serving(&elsewhere), &now), Some(elsewhere.as_path()));
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        let linked = inside.path().join("link/b.img");
        assert_eq!(before.first_outside(&serving(&linked), &now), Some(linked.as_path()));
        std::fs::write(&elsewhere, "").unwrap();
        assert_eq!(before.first_outside(&serving(&linked), &now), Some(linked.as_path()));
    }
}

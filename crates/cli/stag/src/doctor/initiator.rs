//! `stag doctor` checks a machine that uses disks: the kernel's clients, the initiator's name, and
//! settings of open-iscsi and dm-multipath that make a lost path last. It reports nothing where
//! none of these programs is installed.

use super::{Files, Finding};

/// The kernel's clients, by the modules that they need.
const CLIENTS: [(&str, &[&str]); 4] = [
    ("iSCSI", &["iscsi_tcp"]),
    ("iSER on any network card", &["ib_iser", "siw"]),
    ("NFS", &["nfs"]),
    ("NFS over RDMA on any network card", &["rpcrdma", "siw"]),
];
/// How long open-iscsi should hold I/O of a lost path back if there are other paths, seconds.
const REPLACEMENT: u64 = 30;

pub(super) fn look(files: &Files) -> Vec<Finding> {
    let installed = files.exists("/etc/iscsi/iscsid.conf");
    let multipath = files.exists("/run/multipathd.pid") || files.exists("/etc/multipath.conf");
    let mut findings: Vec<Finding> = clients(files).into_iter().collect();
    if installed {
        findings.push(name(files));
    }
    if multipath {
        findings.push(priorities(files));
        if installed {
            findings.push(replacement(files));
        }
    }
    findings
}

/// Nothing is found in a container, which does not have the modules of its kernel.
fn clients(files: &Files) -> Option<Finding> {
    let modules = format!("/lib/modules/{}", files.text("/proc/sys/kernel/osrelease")?);
    let lists = ["modules.dep", "modules.builtin"].map(|list| files.text(&format!("{modules}/{list}")));
    let [Some(loadable), Some(builtin)] = lists else { return None };
    // Lines of modules.dep begin with `PATH/NAME.ko[.xz|.zst]:`, those of modules.builtin are
    // `PATH/NAME.ko`.
    let has = |module: &&str| {
        loadable.lines().chain(builtin.lines()).any(|line| {
            let path = line.split(':').next().unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default();
            file.split('.').next().unwrap_or_default().replace('-', "_") == **module
        })
    };
    let words = CLIENTS.map(|(client, modules)| {
        let missing: Vec<&str> = modules.iter().filter(|module| !has(module)).copied().collect();
        match missing.is_empty() {
            true => client.to_owned(),
            false => format!("not {client} (module {})", missing.join(", ")),
        }
    });
    Some(Finding::ok("clients", format!("the kernel can attach by {}", words.join("; "))))
}

fn name(files: &Files) -> Finding {
    let place = "/etc/iscsi/initiatorname.iscsi";
    if !files.exists(place) {
        return Finding::critical(
            "initiator",
            format!("open-iscsi has no name: {place} is missing"),
            format!("echo InitiatorName=$(iscsi-iname) > {place}"),
        );
    }
    // The file is root's alone.
    match files.text(place).map(|text| setting(&text, "InitiatorName")) {
        Some(Some(name)) => {
            Finding::ok("initiator", format!("open-iscsi's name is {name}; no other machine may have it"))
        }
        Some(None) => Finding::critical(
            "initiator",
            format!("{place} has no line InitiatorName="),
            format!("echo InitiatorName=$(iscsi-iname) > {place}"),
        ),
        None => Finding::ok("initiator", "open-iscsi has a name, which only root may read"),
    }
}

/// The value of the last line `NAME = VALUE` that is no comment.
fn setting(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.trim().split_once('=')?;
        (key.trim() == name && !value.trim().is_empty()).then(|| value.trim().to_owned())
    };
    text.lines().rev().find_map(value)
}

fn replacement(files: &Files) -> Finding {
    let text = files.text("/etc/iscsi/iscsid.conf").unwrap_or_default();
    let key = "node.session.timeo.replacement_timeout";
    // open-iscsi's own default.
    let seconds = setting(&text, key).and_then(|value| value.parse().ok()).unwrap_or(120);
    match seconds > REPLACEMENT {
        true => Finding::warning(
            "open-iscsi",
            format!("I/O on a lost path waits {seconds} s before dm-multipath may use another one"),
            format!("set {key} = 5 in /etc/iscsi/iscsid.conf, and log in again"),
        ),
        false => Finding::ok(
            "open-iscsi",
            format!("I/O on a lost path waits {seconds} s before another one is used"),
        ),
    }
}

fn priorities(files: &Files) -> Finding {
    let text = files.text("/etc/multipath.conf").unwrap_or_default();
    let parts = files.names("/etc/multipath/conf.d").into_iter().filter(|name| name.ends_with(".conf"));
    let text = parts
        .filter_map(|name| files.text(&format!("/etc/multipath/conf.d/{name}")))
        .fold(text, |all, part| all + "\n" + &part);
    let mut lines = text.lines().map(|line| line.split(['#', '!']).next().unwrap_or_default());
    let grouped = lines.any(|line| {
        let mut words = line.split_whitespace().map(|word| word.trim_matches('"'));
        words.next() == Some("path_grouping_policy") && words.next() == Some("group_by_prio")
    });
    match grouped {
        true => Finding::ok("multipath", "dm-multipath groups paths by their priority"),
        false => Finding::warning(
            "multipath",
            "dm-multipath uses one path at a time: nothing groups paths by their priority (ALUA)",
            "in defaults of /etc/multipath.conf: path_grouping_policy group_by_prio, prio alua, failback immediate",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine;
    use super::*;
    use crate::health::space::Level;

    #[test]
    fn missing_modules_are_named_with_what_they_are_for() {
        let release = ("/proc/sys/kernel/osrelease", "6.1.0\n");
        let dep = "kernel/drivers/scsi/iscsi_tcp.ko.xz: kernel/x.ko.xz\nkernel/drivers/infiniband/ulp/iser/ib_iser.ko:\n";
        let (_dir, files) = machine(&[
            release,
            ("/lib/modules/6.1.0/modules.dep", dep),
            ("/lib/modules/6.1.0/modules.builtin", "kernel/fs/nfs/nfs.ko\n"),
        ]);
        let found = clients(&files).unwrap();
        assert_eq!(
            found.what,
            "the kernel can attach by iSCSI; not iSER on any network card (module siw); NFS; \
             not NFS over RDMA on any network card (module rpcrdma, siw)"
        );
        let (_dir, files) = machine(&[release]);
        assert!(clients(&files).is_none());
    }

    #[test]
    fn an_initiator_without_a_name_is_found() {
        let conf = ("/etc/iscsi/iscsid.conf", "");
        for (text, level) in [
            ("", Level::Critical),
            ("#InitiatorName=iqn.a\n", Level::Critical),
            ("InitiatorName=iqn.a\n", Level::Ok),
        ] {
            let (_dir, files) = machine(&[conf, ("/etc/iscsi/initiatorname.iscsi", text)]);
            assert_eq!(look(&files)[0].level, level, "{text}");
        }
        let (_dir, files) = machine(&[conf]);
        assert_eq!(look(&files)[0].level, Level::Critical);
        let (_dir, files) = machine(&[]);
        assert!(look(&files).is_empty());
    }

    #[test]
    fn timeouts_and_groups_that_make_a_lost_path_last_are_found() {
        let levels = |iscsid: &str, multipath: &str| {
            let (_dir, files) = machine(&[
                ("/etc/iscsi/iscsid.conf", iscsid),
                ("/etc/iscsi/initiatorname.iscsi", "InitiatorName=iqn.a\n"),
                ("/etc/multipath.conf", multipath),
            ]);
            look(&files).iter().map(|found| found.level).collect::<Vec<_>>()
        };
        let (good, bad) =
            ("node.session.timeo.replacement_timeout = 5\n", "#node.session.timeo.replacement_timeout = 5\n");
        let groups = "defaults {\n\tpath_grouping_policy \"group_by_prio\"\n}\n";
        assert_eq!(levels(good, groups), [Level::Ok, Level::Ok, Level::Ok]);
        assert_eq!(levels(bad, groups), [Level::Ok, Level::Ok, Level::Warning]);
        assert_eq!(
            levels(good, "# path_grouping_policy group_by_prio\n"),
            [Level::Ok, Level::Warning, Level::Ok]
        );
    }
}

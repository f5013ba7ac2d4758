//! `stag osd` against `stag serve osd:…`, in processes of their own. Trees are put and got over TCP
//! and over iSER, and every other subcommand's output is checked.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::support;
use crate::support::command::{Server, done, fails, noise, path, said, stag_with};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lgetxattr, lsetxattr, mknodat, utimensat,
};
use rustix::process::Signal;
use serde_json::Value;

const LISTEN: [&str; 4] = ["--listen", "127.0.0.1:0", "--cores", "1"];

fn serve(unit: &str) -> Server {
    Server::start(&[&LISTEN[..], &[unit]].concat(), 1)
}

/// Every kind of file that a tree may have. Returns whether the file system keeps extended
/// attributes.
fn make_tree(top: &Path) -> bool {
    fs::create_dir_all(top.join("empty directory")).unwrap();
    fs::create_dir_all(top.join("deep/er/still")).unwrap();
    fs::write(top.join("empty"), b"").unwrap();
    fs::write(top.join("small"), b"small").unwrap();
    fs::write(top.join("just one command"), noise(512 << 10)).unwrap();
    fs::write(top.join("deep/er/still/large"), noise(5_000_123)).unwrap();
    for n in 0..60 {
        fs::write(top.join(format!("deep/{n}")), noise(n * 97)).unwrap();
    }
    fs::write(top.join(OsStr::from_bytes(b"no text \xff\n")), b"odd").unwrap();
    // A name that looks like an id.
    fs::write(top.join("0x10004"), b"no id").unwrap();
    symlink("deep/er", top.join("to a directory")).unwrap();
    symlink("nowhere at all", top.join("deep/broken")).unwrap();
    mknodat(CWD, top.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::write(top.join("first name"), b"one file, three names").unwrap();
    fs::hard_link(top.join("first name"), top.join("deep/second name")).unwrap();
    fs::hard_link(top.join("first name"), top.join("deep/er/third name")).unwrap();
    let sparse = File::create_new(top.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 33 << 20).unwrap();
    fs::set_permissions(top.join("small"), PermissionsExt::from_mode(0o4710)).unwrap();
    fs::set_permissions(top.join("empty directory"), PermissionsExt::from_mode(0o1777)).unwrap();
    let kept = lsetxattr(top.join("small"), c"user.colour", b"red", XattrFlags::empty()).is_ok();
    if kept {
        let long: Vec<u8> = noise(3000);
        lsetxattr(top.join("small"), c"user.long", &long, XattrFlags::empty()).unwrap();
        lsetxattr(top.join("deep"), c"user.empty", b"", XattrFlags::empty()).unwrap();
    }
    let past = Timestamps {
        last_access: Timespec { tv_sec: 1_000_000_001, tv_nsec: 1 },
        last_modification: Timespec { tv_sec: -7, tv_nsec: 999_999_999 },
    };
    for name in ["small", "deep/broken", "deep", "empty directory"] {
        utimensat(CWD, top.join(name), &past, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    kept
}

fn xattr(path: &Path, name: &std::ffi::CStr) -> Option<Vec<u8>> {
    let mut value = vec![0; 65536];
    let len = lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// Fails if two trees differ in any preserved property.
fn same(a: &Path, b: &Path) {
    let (about_a, about_b) = (fs::symlink_metadata(a).unwrap(), fs::symlink_metadata(b).unwrap());
    let facts = |about: &fs::Metadata| {
        (
            about.mode(),
            about.uid(),
            about.gid(),
            about.mtime(),
            about.mtime_nsec(),
            about.nlink(),
            about.rdev(),
        )
    };
    assert_eq!(facts(&about_a), facts(&about_b), "{} and {}", a.display(), b.display());
    for name in [c"user.colour", c"user.long", c"user.empty"] {
        assert_eq!(xattr(a, name), xattr(b, name), "{name:?} of {}", a.display());
    }
    let kind = about_a.file_type();
    if kind.is_dir() {
        let names = |path: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(a), names(b), "{}", a.display());
        names(a).iter().for_each(|name| same(&a.join(name), &b.join(name)));
    } else if kind.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    } else if kind.is_file() {
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "the bytes of {}", a.display());
    }
}

fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&done(args)).unwrap()
}

#[test]
fn a_tree_that_is_put_and_got_back_over_tcp_and_over_iser_is_identical() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make_tree(&from);
    let server = serve("osd:mem:1G");
    for (put, get) in
        [(server.iscsi(0).to_owned(), server.iser(0)), (server.iser(0), server.iscsi(0).to_owned())]
    {
        let partition = said(&["osd", "mkpart", &put]).trim().to_owned();
        let to = format!("{put}/{partition}/some/where");
        let told = json(&["osd", "put", "-r", "--json", from.to_str().unwrap(), &to]);
        assert!(told["files"].as_u64() > Some(70) && told["holes"].as_u64() > Some(60 << 20), "{told}");
        let back = dir.path().join(format!("back{partition}"));
        done(&["osd", "get", "-r", &format!("{get}/{partition}/some/where"), back.to_str().unwrap()]);
        same(&from, &back);
        assert!(fs::metadata(back.join("sparse")).unwrap().blocks() * 512 < 4 << 20, "holes were filled");
        let (one, two) = (back.join("first name"), back.join("deep/er/third name"));
        assert_eq!(fs::metadata(one).unwrap().ino(), fs::metadata(two).unwrap().ino());
        // Put once more over the existing tree: each file replaces the old one.
        done(&["osd", "put", "-r", "-q", from.to_str().unwrap(), &to]);
        fs::remove_dir_all(&back).unwrap();
        done(&["osd", "get", "-r", &format!("{get}/{partition}/some/where"), back.to_str().unwrap()]);
        same(&from, &back);
        let count = |what: &str| {
            json(&["osd", "ls", "--json", what, &format!("{put}/{partition}")]).as_array().unwrap().len()
        };
        // Three directories more than there were: the top, some and where; files, links and
        // directories, and the object of the links.
        assert_eq!(count("--objects"), 3 + 77 + 1, "objects were left behind");
        assert_eq!(count("--collections"), 3 + 4);
        done(&["osd", "rm", "-r", &format!("{put}/{partition}/some")]);
        assert_eq!((count("--objects"), count("--collections")), (1, 1));
        done(&["osd", "rmpart", "-r", &format!("{put}/{partition}")]);
    }
}

#[test]
fn every_osd_command_does_what_its_help_says() {
    let dir = tempfile::tempdir().unwrap();
    let file = path(dir.path(), "report.pdf");
    let data = noise(1_234_567);
    fs::write(&file, &data).unwrap();
    let server = serve("osd:mem:256M,name=attic,serial=S7");
    let url = server.iscsi(0);
    let info = said(&["info", url]);
    assert!(info.contains("object storage") && info.contains("S7"), "{info}");
    assert!(said(&["ls", "--units", &format!("iscsi://{}", server.portal())]).contains("object storage"));
    let facts = json(&["osd", "stat", "--json", url]);
    assert_eq!((&facts["name"], &facts["kind"]), (&"attic".into(), &"root".into()), "{facts}");

    assert_eq!(
        said(&["osd", "mkpart", &format!("{url}/0x20000"), "--name", "first", "--objects", "50"]),
        "0x20000\n"
    );
    let part = format!("{url}/0x20000");
    assert!(fails(&["osd", "mkpart", &part], 1).contains("the id is taken"));
    assert!(said(&["osd", "ls", "-l", url]).contains("first"));
    assert_eq!(said(&["osd", "attr", "get", &part, "object-quota"]), "50\n");

    // By id: an object without a name.
    let id =
        String::from_utf8(stag_with(&["osd", "put", "-", &part], &data).stdout).unwrap().trim().to_owned();
    let object = format!("{part}/{id}");
    assert!(done(&["osd", "get", &object, "-"]) == data);
    assert!(
        done(&["osd", "get", &object, "-", "--offset", "1000000", "--length", "99"])
            == data[1_000_000..1_000_099]
    );
    let put = stag_with(&["osd", "put", "-", &object], b"shorter");
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert_eq!(done(&["osd", "get", &object, "-"]), b"shorter");

    // By name.
    done(&["osd", "put", &file, &part]);
    let named = format!("{part}/report.pdf");
    assert!(said(&["osd", "ls", "-l", &part]).contains("1234567"));
    let back = path(dir.path(), "back");
    done(&["osd", "get", &named, &back]);
    assert!(fs::read(&back).unwrap() == data);
    assert_eq!(json(&["osd", "stat", "--json", &named])["length"], 1_234_567);
    assert!(json(&["osd", "stat", "--json", "--map", &named])["map"].as_array().unwrap().len() == 1);
    let complaint = fails(&["osd", "get", &format!("{part}/repot.pdf")], 1);
    assert!(complaint.contains("no such file") && complaint.contains("stag osd ls"), "{complaint}");

    // Attributes, of any page.
    done(&["osd", "attr", "set", &object, "name=nameless", "10000:1=red", "10000:2=hex:00ff"]);
    assert_eq!(said(&["osd", "attr", "get", &object, "10000:1"]), "red\n");
    assert_eq!(done(&["osd", "attr", "get", "--raw", &object, "10000:2"]), [0, 255]);
    let listed = said(&["osd", "attr", "list", &object]);
    assert!(listed.contains("nameless") && listed.contains("hex:00ff"), "{listed}");
    done(&["osd", "attr", "rm", &object, "10000:2"]);
    fails(&["osd", "attr", "get", &object, "10000:2"], 1);
    assert!(fails(&["osd", "attr", "set", &object, "lenght=u64:1"], 1).contains("`length`"));

    // Queries and collections.
    assert!(said(&["osd", "find", &part, "10000:1=red"]).starts_with(&id));
    assert!(said(&["osd", "find", &part, "--name", "report.pdf"]).contains("report.pdf"));
    assert_eq!(said(&["osd", "find", &part, "10000:1=blue"]), "");
    assert!(said(&["osd", "find", &part, "length=u64:1M.."]).contains("report.pdf"));
    let coll = said(&["osd", "coll", "make", "--name", "best", &part]).trim().to_owned();
    let coll = format!("{part}/{coll}");
    done(&["osd", "coll", "add", &coll, &object, &named]);
    done(&["osd", "coll", "add", &coll, &object]);
    assert_eq!(said(&["osd", "ls", &coll]).lines().count(), 2);
    assert!(fails(&["osd", "coll", "rm", &coll], 1).contains("not empty"));
    done(&["osd", "attr", "set", "--members", &coll, "10000:9=both"]);
    assert_eq!(said(&["osd", "attr", "get", &named, "10000:9"]), "both\n");
    assert_eq!(said(&["osd", "attr", "get", "--members", &coll, "10000:9"]).matches("both").count(), 2);
    done(&["osd", "coll", "take", &coll, &named]);
    assert_eq!(said(&["osd", "ls", &coll]).lines().count(), 1);

    // A snapshot keeps what was, and a clone goes its own way.
    let snapshot = said(&["osd", "snapshot", "create", &part]).trim().to_owned();
    let clone = said(&["osd", "snapshot", "clone", &part, "0x50000"]).trim().to_owned();
    assert_eq!(clone, "0x50000");
    stag_with(&["osd", "put", "-", &object], b"changed");
    let kept = format!("{url}/{snapshot}/{id}");
    assert_eq!(done(&["osd", "get", &kept, "-"]), b"shorter");
    assert!(!said(&["osd", "snapshot", "diff", &object, &snapshot]).is_empty());
    assert!(said(&["osd", "ls", &format!("{url}/{snapshot}")]).contains("report.pdf"), "its tree came along");
    assert_eq!(done(&["osd", "get", &format!("{url}/{clone}/report.pdf"), "-"]), data);
    done(&["osd", "snapshot", "restore", &part, &snapshot]);
    assert_eq!(done(&["osd", "get", &object, "-"]), b"shorter");
    done(&["osd", "snapshot", "refresh", &format!("{url}/{snapshot}")]);
    done(&["osd", "snapshot", "detach", &format!("{url}/{clone}")]);
    assert_eq!(said(&["osd", "check", url]), "all is in order\n");

    // The message about a quota has advice.
    done(&["osd", "attr", "set", &part, "capacity-quota=u64:1000"]);
    let complaint = stag_with(&["osd", "put", "-", &part], &data);
    let complaint = String::from_utf8_lossy(&complaint.stderr).into_owned();
    assert!(complaint.contains("quota") && complaint.contains("capacity-quota="), "{complaint}");
    fails(&["osd", "rmpart", &part], 1);
    assert!(fails(&["osd", "get", &format!("{url}/0x90000/x")], 1).contains("stag osd ls"));
    done(&["osd", "format", "--destroy", url]);
    assert_eq!(said(&["osd", "ls", url]), "");
}

#[test]
fn a_disk_is_no_device_of_objects() {
    let server = serve("mem:8M");
    assert!(fails(&["osd", "ls", server.iscsi(0)], 1).contains("type 0x11"));
    fails(&["osd", "ls", "iscsi://127.0.0.1:1/iqn.2026-01.org.example:x/0"], 5);
}

#[test]
fn what_was_put_is_there_after_the_server_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make_tree(&from);
    let unit = format!("osd:{},capacity=1G", path(dir.path(), "store"));
    let server = serve(&unit);
    let partition = said(&["osd", "mkpart", server.iscsi(0)]).trim().to_owned();
    done(&["osd", "put", "-r", "-q", from.to_str().unwrap(), &format!("{}/{partition}", server.iscsi(0))]);
    assert_eq!(server.end(Signal::KILL), None);
    let store = path(dir.path(), "store");
    assert!(said(&["osd", "check", &store]).contains("in order"));
    let server = serve(&unit);
    let back = dir.path().join("back");
    done(&["osd", "get", "-r", "-q", &format!("{}/{partition}", server.iser(0)), back.to_str().unwrap()]);
    same(&from, &back);
    // While the daemon serves the directory, no other process can open it.
    assert!(fails(&["osd", "check", &store], 1).contains("store"));
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(said(&["osd", "check", &store]).contains("in order"));
}

#[test]
fn unfinished_objects_of_a_killed_put_are_marked_and_removable() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&format!("osd:{},capacity=1G", path(dir.path(), "store")));
    let partition = said(&["osd", "mkpart", server.iscsi(0)]).trim().to_owned();
    let url = format!("{}/{partition}", server.iscsi(0));
    let file = path(dir.path(), "file");
    fs::write(&file, noise(1 << 20)).unwrap();
    done(&["osd", "put", "-q", &file, &format!("{url}/whole")]);
    let unfinished = |hours: &str| {
        let removed = json(&["osd", "rm", "--json", "--unfinished", "--hours", hours, &url]);
        removed["removed"].as_u64().unwrap()
    };
    assert_eq!(unfinished("0"), 0, "what has its name is finished");
    let objects = || json(&["osd", "ls", "--objects", "--json", &url]).as_array().unwrap().len();
    let before = objects();
    let to = format!("{url}/cut off");
    let mut put = std::process::Command::new(support::command::STAG)
        .args(["osd", "put", "-q", "-", &to])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = put.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, &noise(600_000)).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(90);
    while objects() == before {
        assert!(std::time::Instant::now() < deadline, "it does not begin");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    put.kill().unwrap();
    put.wait().unwrap();
    drop(stdin);
    assert!(fails(&["osd", "get", &to, &path(dir.path(), "no")], 1).contains("no such file"));
    assert_eq!(unfinished("24"), 0, "it may be at work still");
    assert_eq!((unfinished("0"), objects()), (1, before));

    // A file of several names is whole once it has them, even if its put did not finish.
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "of two names").unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    done(&["osd", "put", "-r", "-q", tree.to_str().unwrap(), &format!("{url}/tree")]);
    let named =
        json(&["osd", "stat", "--json", &format!("{url}/tree/a")])["link"].as_str().unwrap().to_owned();
    let mark = |object: &str| done(&["osd", "attr", "set", &format!("{url}/{object}"), "535446:b=u64:1"]);
    mark(&named);
    assert_eq!(unfinished("0"), 0, "names link to it");
    done(&["osd", "get", "-q", &format!("{url}/tree/b"), &path(dir.path(), "b")]);
    assert_eq!(fs::read(path(dir.path(), "b")).unwrap(), b"of two names");

    // An object that was cut off and then put by its id is whole.
    let number = format!("{url}/0x20000");
    done(&["osd", "put", "-q", &file, &number]);
    mark("0x20000");
    done(&["osd", "put", "-q", &file, &number]);
    assert_eq!(unfinished("0"), 0, "it was put again");
    done(&["osd", "get", "-q", &format!("{url}/whole"), &path(dir.path(), "back")]);
    assert!(fs::read(path(dir.path(), "back")).unwrap() == noise(1 << 20));
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_put_fails_whose_object_is_taken_for_one_that_was_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve("osd:mem:1G");
    let partition = said(&["osd", "mkpart", server.iscsi(0)]).trim().to_owned();
    let url = format!("{}/{partition}", server.iscsi(0));
    let file = path(dir.path(), "file");
    fs::write(&file, noise(1000)).unwrap();
    done(&["osd", "put", "-q", &file, &format!("{url}/whole")]);
    let objects = || -> Vec<String> {
        let all = json(&["osd", "ls", "--objects", "--json", &url]);
        all.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    let before = objects();
    let mut put = std::process::Command::new(support::command::STAG)
        .args(["osd", "put", "-q", "-", &format!("{url}/late")])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = put.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, &noise(600_000)).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(90);
    let own = loop {
        assert!(std::time::Instant::now() < deadline, "it does not begin");
        if let Some(own) = objects().into_iter().find(|id| !before.contains(id)) {
            break own;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    // As rm --unfinished marks it, right before it removes it.
    done(&["osd", "attr", "set", &format!("{url}/{own}"), "535446:c=u64:1"]);
    drop(stdin);
    let output = put.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("rm --unfinished"), "{said}");
    assert_eq!(objects(), before);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_damaged_store_is_told_of_repaired_and_served_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = path(dir.path(), "store");
    let unit = format!("osd:{store},capacity=1G");
    let server = serve(&unit);
    let partition = said(&["osd", "mkpart", server.iscsi(0)]).trim().to_owned();
    let url = |server: &Server, name: &str| format!("{}/{partition}/{name}", server.iscsi(0));
    let file = path(dir.path(), "file");
    for name in ["this one is going to be damaged", "this one stays"] {
        fs::write(&file, name).unwrap();
        done(&["osd", "put", "-q", &file, &url(&server, name)]);
    }
    assert_eq!(server.end(Signal::TERM), Some(0));
    let metadata = path(dir.path(), "store/metadata.redb");
    let mut bytes = fs::read(&metadata).unwrap();
    let (name, mut flipped) = (b"this one is going to be damaged", 0);
    for at in 0..bytes.len() - name.len() {
        if bytes[at..].starts_with(name) {
            // A single wrong bit would be turned back.
            bytes[at] ^= 3;
            flipped += 1;
        }
    }
    assert!(flipped > 0);
    fs::write(&metadata, &bytes).unwrap();
    assert!(fails(&["osd", "check", &store], 1).contains("--repair mends"));
    let found = stag_with(&["osd", "check", "--json", "--repair", &store], b"");
    assert_eq!(found.status.code(), Some(1), "it was not in order");
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert!(found["wrong"].as_u64().unwrap() > 0 && found["wrong"] == found["repaired"], "{found}");
    assert!(said(&["osd", "check", &store]).contains("in order"));
    let server = serve(&unit);
    let back = path(dir.path(), "back");
    done(&["osd", "get", "-q", &url(&server, "this one stays"), &back]);
    assert_eq!(fs::read(&back).unwrap(), b"this one stays");
    let gone = url(&server, "this one is going to be damaged");
    assert!(fails(&["osd", "get", &gone, &path(dir.path(), "no")], 1).contains("no such file"));
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_device_that_demands_proof_serves_those_with_credentials_alone() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make_tree(&from);
    let from = from.to_str().unwrap();
    let server = serve("osd:mem:1G");
    let partition = said(&["osd", "mkpart", server.iscsi(0)]).trim().to_owned();
    let url = format!("{}/{partition}", server.iscsi(0));
    let keys = path(dir.path(), "keys");
    done(&["osd", "keys", server.iscsi(0), "--keys", &keys]);
    let grant = |method: &str, permit: &str| {
        let one = |of: &[&str]| {
            let args = ["osd", "grant", &partition, "--keys", &keys, "--permit", permit, "--method", method];
            done(&[&args[..], of].concat())
        };
        let file = path(dir.path(), &format!("{method} {permit}"));
        fs::write(&file, [one(&[]), one(&["0"]), one(&["0", "--collection"])].concat()).unwrap();
        file
    };
    for method in ["capkey", "cmdrsp", "alldata"] {
        done(&["osd", "keys", &url, "--keys", &keys, "--demand", method]);
        assert!(fails(&["osd", "ls", &url], 1).contains("stag osd grant"));
        let all = grant(method, "all");
        // A capability key is bound to the session whose token was signed. It works over both
        // transports, like the others.
        for (put, get) in
            [(server.iscsi(0).to_owned(), server.iser(0)), (server.iser(0), server.iscsi(0).to_owned())]
        {
            let to = format!("{put}/{partition}/{method}");
            done(&["osd", "put", "-r", "-q", "--credential", &all, from, &to]);
            let back = dir.path().join("back");
            let there = format!("{get}/{partition}/{method}");
            done(&["osd", "get", "-r", "-q", "--credential", &all, &there, back.to_str().unwrap()]);
            same(from.as_ref(), &back);
            fs::remove_dir_all(&back).unwrap();
        }
        assert!(said(&["osd", "ls", "-l", "--credential", &all, &url]).contains(method));
        let reader = grant(method, "read,get_attr,m_object,query");
        let file = path(dir.path(), "small");
        done(&["osd", "get", "--credential", &reader, &format!("{url}/{method}/small"), &file]);
        assert_eq!(fs::read(&file).unwrap(), b"small");
        fails(&["osd", "rm", "--credential", &reader, &format!("{url}/{method}/small")], 1);
        // All credentials end with the key that signed them.
        done(&["osd", "keys", &url, "--keys", &keys, "--renew"]);
        assert!(fails(&["osd", "ls", "--credential", &all, &url], 1).contains("not valid"));
    }
}

#[test]
fn keys_that_were_cut_off_behind_the_master_key_are_made_by_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve("osd:mem:1G");
    let keys = path(dir.path(), "keys");
    done(&["osd", "keys", server.iscsi(0), "--keys", &keys]);
    let whole = fs::read_to_string(&keys).unwrap();
    let first = |line: &&str| ["#", "system ", "master "].iter().any(|begin| line.starts_with(begin));
    let begun: String = whole.lines().filter(first).map(|line| format!("{line}\n")).collect();
    fs::write(&keys, begun).unwrap();
    done(&["osd", "keys", server.iscsi(0), "--keys", &keys, "--demand", "cmdrsp"]);
    assert_eq!(fs::read_to_string(&keys).unwrap().lines().count(), whole.lines().count());
}

/// The library, over one transport.
async fn library(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    use iscsi_client::objects::{Attribute, New, Objects, Operation, Query, Range, Why};
    use iscsi_client::{Options, Residual, Session, Url};
    use osd::attributes::numbers::{current_command, user_information};
    use osd::cdb::ObjectRange;
    use osd::{AttributeId, Command, Page};
    use runtime::Buf;

    let url: Url = url.parse()?;
    let session = Session::connect(
        &url,
        Options { reconnect_timeout: std::time::Duration::ZERO, ..Options::default() },
    )
    .await?;
    let device = Objects::open(&session, url.lun.unwrap_or(0)).await?;
    let partition = device.create_partition(0, []).await?;
    let own = |number| AttributeId::new(Page(0x10000), number);

    // Many at once, with consecutive ids, and a list in pages of a few.
    let first = device
        .create_many(partition, 300, New::default().set(Attribute::new(own(1), b"same".to_vec())))
        .await?;
    let mut under_way = Vec::new();
    for n in 0..64u64 {
        let id = osd::Id::new(partition, first.object + n);
        let range = ObjectRange { start: 0, len: 4096 };
        let write = Operation::new(Command::Write(id, range)).writing(Buf::from(vec![n as u8; 4096]));
        under_way.push(
            device.start(write.set(own(2), n.to_be_bytes()).get([user_information::LOGICAL_LENGTH])).await?,
        );
    }
    for pending in under_way {
        let reply = pending.finish().await?;
        assert_eq!(
            reply.number(user_information::LOGICAL_LENGTH),
            Some(4096),
            "set, written and got in one command"
        );
    }
    let all = device.objects(partition).page(1024).all().await?;
    assert_eq!(all.len(), 300);
    assert!(all.windows(2).all(|pair| pair[0].id < pair[1].id));
    let with =
        device.objects(partition).page(1024).with([own(1), own(2)]).from(first.object + 60).all().await?;
    assert_eq!(with.len(), 240);
    assert_eq!(
        (with[0].value(own(1)), with[3].number(own(2)), with[4].value(own(2))),
        (Some(&b"same"[..]), Some(63), None)
    );
    let mut some = device.objects(partition).page(1024);
    for _ in 0..7 {
        some.next().await?.ok_or("a list that ends early")?;
    }
    let place = some.place().ok_or("no place to go on from")?;
    assert_eq!(device.objects(partition).from(place).all().await?.len(), 293);

    // Data: short reads, holes, appends, removed ranges.
    let data = noise(3_000_000);
    let id =
        device.create_with(partition, New::default().durable(), Buf::from(data[..1000].to_vec())).await?;
    device.write(id, 1000, Buf::from(data[1000..].to_vec())).await?;
    assert!(device.read(id, 0, 10_000_000).await?.to_vec() == data, "a read past the end is short");
    assert_eq!(device.read(id, 3_000_000, 10).await?.len(), 0);
    assert_eq!(device.append(id, Buf::from(b"tail".to_vec())).await?, 3_000_000);
    device.punch(id, 0, 2_999_000).await?;
    assert_eq!(device.read(id, 0, 2000).await?.to_vec(), [&data[2_999_000..], b"tail"].concat());
    device.clear(id, 10, 980).await?;
    device.set_len(id, 995).await?;
    let expected = [&data[2_999_000..2_999_010], &[0; 980][..], &data[2_999_990..2_999_995]].concat();
    assert_eq!(device.read(id, 0, 2000).await?.to_vec(), expected);
    let copy = device.copy(id, partition, New::default()).await?;
    assert_eq!(device.read(copy, 0, 2000).await?.to_vec(), expected);
    device.write_durably(copy, 1 << 30, Buf::from(vec![1])).await?;
    let map = device.map(copy).await?;
    assert!(
        map.len() >= 3 && map.iter().any(|part| part.kind == iscsi_client::objects::MapType::Hole),
        "{map:?}"
    );
    device.flush(copy).await?;

    // A read with attributes in the same Data-In, of an object that ends early.
    let read = Operation::new(Command::Read(id, ObjectRange { start: 990, len: 4096 }));
    let reply = device.run(read.get([user_information::LOGICAL_LENGTH, own(77)])).await?;
    assert_eq!((reply.data.len(), reply.number(user_information::LOGICAL_LENGTH)), (5, Some(995)));
    assert_eq!((reply.attributes.len(), reply.value(own(77))), (2, None));

    // Both residuals of one bidirectional command: too much was sent, and more room was given than
    // the answer needs.
    let mut cdb = osd::Cdb::new(Command::GetAttributes(id));
    let mut list = Vec::new();
    osd::attributes::list::write_get(&mut list, osd::Version::Osd2, [user_information::LOGICAL_LENGTH]);
    let region = |offset, len: usize| Some(osd::cdb::Region { offset, len: len as u32 });
    cdb.attributes = osd::cdb::AttributeParameters::List {
        get: region(0, list.len()),
        retrieved: region(0, 1000),
        set: None,
    };
    cdb.capability = osd::Capability::all(osd::Version::Osd2, osd::ObjectType::User, id);
    let mut out = list.clone();
    out.extend([0; 100]);
    let sent = out.len();
    let response =
        device.unit().scsi_command(&cdb.encode()?, Some(Buf::from(out).into()), Some(2000)).await?;
    assert_eq!(response.status, 0);
    assert_eq!(response.data.len(), 8 + 16 + 8, "a header and an entry");
    assert_eq!(response.read_residual, Residual::Underflow(2000 - 32));
    assert!(
        matches!(response.residual, Residual::Exact | Residual::Underflow(100)),
        "{:?} of {sent}",
        response.residual
    );

    // Each error has its reason.
    let why = |error: iscsi_client::objects::ObjectError| error.why();
    assert_eq!(
        device.read(osd::Id::new(partition, 0xdead_0000), 0, 1).await.map_err(why).unwrap_err(),
        Some(Why::NotFound)
    );
    assert_eq!(
        device.create(partition, New::default().id(id.object)).await.map_err(why).unwrap_err(),
        Some(Why::Exists)
    );
    assert_eq!(device.create_partition(partition, []).await.map_err(why).unwrap_err(), Some(Why::Exists));
    assert_eq!(
        device.remove_partition(partition, false).await.map_err(why).unwrap_err(),
        Some(Why::NotEmpty)
    );
    let fixed = Attribute::number(user_information::ID, 7);
    assert!(device.set_attributes(id, [fixed]).await.is_err());

    // A query that finds many, into a collection that is emptied.
    let collection = device.create_tracking_collection(partition, New::default(), 0).await?;
    let query =
        Query { into: collection.object, ..Query::default() }.with(Range::exactly(own(1), b"same".to_vec()));
    assert_eq!(device.query(osd::Id::partition(partition), &query).await?.len(), 300);
    assert_eq!(device.members(collection).all().await?.len(), 300);
    device.remove_members(collection).await?;
    assert_eq!(device.objects(partition).all().await?.len(), 2);
    let created = device.create(partition, New::default()).await?;
    let reply =
        device.run(Operation::new(Command::GetAttributes(created)).get([current_command::OBJECT_ID])).await?;
    assert_eq!(reply.number(current_command::OBJECT_ID), Some(created.object));
    device.remove_partition(partition, true).await?;
    device.flush_all().await?;
    session.close().await?;
    Ok(())
}

#[test]
fn the_library_does_what_it_says_over_tcp_and_over_iser() {
    let server = serve("osd:mem:256M");
    let runtime = runtime::Runtime::new(runtime::Config::default()).unwrap();
    for url in [server.iscsi(0).to_owned(), server.iser(0)] {
        runtime.block_on(library(&url)).unwrap_or_else(|error| panic!("{url}: {error}"));
    }
}

//! Stag's own client against the server, in every version: files, directories, and a server that
//! restarts in between.

use std::net::SocketAddr;

use crate::support;
use crate::support::Served;
use nfs_client::{
    Attributes, Auth, Client, Cursor, Error, FileType, Options, SetAttributes, Status, Sys, Url, Version,
};
use runtime::{Chain, Config, Runtime};

/// Every scheme with every version.
fn all() -> impl Iterator<Item = (&'static str, Version)> {
    ["nfs", "nfs+rdma"].into_iter().flat_map(|scheme| Version::ALL.map(|version| (scheme, version)))
}

fn url(scheme: &str, served: &Served, path: &str, version: Version) -> Url {
    format!("{scheme}://{}{path}?vers={version}", served.address()).parse().expect("a URL")
}

async fn client(url: &Url) -> Client {
    let auth = Auth::Sys(Sys { uid: 0, gid: 0, gids: Vec::new() });
    Client::connect(url, Options { auth, ..Options::default() }).await.expect("it serves")
}

fn run<T>(future: impl Future<Output = T>) -> T {
    Runtime::new(Config::default()).expect("a ring").block_on(future)
}

const NEW: SetAttributes =
    SetAttributes { mode: Some(0o640), size: Some(0), mtime: None, owner: None, group: None };

/// Bytes that differ from place to place.
fn content(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn files_are_made_written_read_and_removed_in_every_version() {
    let served = support::served();
    for (scheme, version) in all() {
        run(async {
            let url = url(scheme, &served, "/data", version);
            let c = client(&url).await;
            assert_eq!(c.version(), version);
            let (root, of) = c.find(&url, true).await.expect("the export");
            assert_eq!(of.kind, FileType::Directory);
            let (directory, of) = c.make_directory(&root, b"d", &NEW_DIRECTORY).await.expect("made");
            assert_eq!((of.kind, of.mode), (FileType::Directory, 0o750));
            let exists = c.make_directory(&root, b"d", &NEW_DIRECTORY).await;
            assert_eq!(exists.err(), Some(Error::Status(Status::Exist)));

            let data = content((5 << 20) + 4321);
            let file = std::rc::Rc::new(c.create(&directory, b"file", &NEW).await.expect("made"));
            let parts: Vec<_> = data
                .chunks(100_000)
                .enumerate()
                .map(|(at, part)| {
                    let (file, part) = (file.clone(), Chain::from(part.to_vec()));
                    runtime::spawn(async move { file.write(at as u64 * 100_000, part).await })
                })
                .collect();
            for part in parts {
                part.await.expect("no panic").expect("written");
            }
            file.sync().await.expect("stable");
            let back = file.read(0, data.len() + 10).await.expect("read");
            assert!(back.to_vec() == data);
            assert_eq!(file.attributes().await.expect("attributes").size, data.len() as u64);
            file.set_size(1000).await.expect("cut");
            file.close().await.expect("closed");

            let mtime = nfs_client::Time { seconds: 981_173_106, nanoseconds: 5 };
            let set = SetAttributes { mtime: Some(mtime), mode: Some(0o600), ..SetAttributes::default() };
            let (handle, _) = c.find(&url.join(b"d").join(b"file"), true).await.expect("found");
            c.set_attributes(&handle, &set).await.expect("set");
            let of = c.attributes(&handle).await.expect("attributes");
            assert_eq!((of.size, of.mode, of.mtime, of.owner.as_str()), (1000, 0o600, mtime, "0"));

            c.symlink(&root, b"link", b"d/../d/./file").await.expect("a link");
            let link = url.join(b"link");
            assert_eq!(c.find(&link, true).await.expect("found").0, handle);
            let (link, of) = c.find(&link, false).await.expect("found");
            assert_eq!(of.kind, FileType::Symlink);
            assert_eq!(c.read_link(&link).await.expect("a path"), b"d/../d/./file");

            let denied = c.remove(&root, b"d", true).await;
            assert_eq!(denied, Err(Error::Status(Status::NotEmpty)));
            c.rename((&directory, b"file"), (&root, b"moved")).await.expect("renamed");
            for (name, is_directory) in [(&b"moved"[..], false), (b"link", false), (b"d", true)] {
                c.remove(&root, name, is_directory).await.expect("removed");
            }
            let gone = c.lookup(&root, b"moved").await;
            assert_eq!(gone.err(), Some(Error::Status(Status::NoEnt)));
            assert!(c.space(&root).await.expect("space").total > 0);
            c.close().await;
        });
    }
    served.stop();
}

const NEW_DIRECTORY: SetAttributes =
    SetAttributes { mode: Some(0o750), size: None, mtime: None, owner: None, group: None };

#[test]
fn files_of_every_length_come_back_over_rdma() {
    let served = support::served();
    for version in Version::ALL {
        run(async {
            let url = url("nfs+rdma", &served, "/data", version);
            let c = client(&url).await;
            let (root, _) = c.find(&url, true).await.expect("the export");
            // Around what one message holds, and around what one call carries.
            for length in [0, 1, 3, 3000, 4095, 4096, 65_536, (1 << 20) - 1, 1 << 20, (3 << 20) + 5] {
                let data = content(length);
                let file = c.create(&root, b"file", &NEW).await.expect("made");
                file.write(0, Chain::from(data.clone())).await.expect("written");
                file.sync().await.expect("stable");
                assert!(file.read(0, length + 10).await.expect("read").to_vec() == data, "{length}");
                assert!(file.read(length as u64, 10).await.expect("read").is_empty());
                file.close().await.expect("closed");
            }
            // A path that fits no message goes both ways in chunks.
            let path = [b'x'; 4090];
            c.symlink(&root, b"long", &path).await.expect("a link");
            let (link, _) = c.lookup(&root, b"long").await.expect("found");
            assert_eq!(c.read_link(&link).await.expect("a path"), path);
            for name in [&b"file"[..], b"long"] {
                c.remove(&root, name, false).await.expect("removed");
            }
            c.close().await;
        });
    }
    served.stop();
}

/// A server that is stopped while many calls are outstanding, and comes back.
#[test]
fn calls_in_progress_survive_a_lost_connection_over_rdma() {
    for version in Version::ALL {
        let mut served = Some(support::served());
        let url = url("nfs+rdma", served.as_ref().expect("it serves"), "/data", version);
        run(async {
            let c = client(&url).await;
            let (root, _) = c.find(&url, true).await.expect("the export");
            let file = std::rc::Rc::new(c.create(&root, b"file", &NEW).await.expect("made"));
            let data = content(12 << 20);
            for _ in 0..2 {
                let parts: Vec<_> = data
                    .chunks(200_000)
                    .enumerate()
                    .map(|(at, part)| {
                        let (file, part) = (file.clone(), Chain::from(part.to_vec()));
                        runtime::spawn(async move { file.write(at as u64 * 200_000, part).await })
                    })
                    .collect();
                runtime::sleep(std::time::Duration::from_millis(3)).await;
                served = served.take().map(restarted);
                for part in parts {
                    part.await.expect("no panic").expect("written");
                }
                file.sync().await.expect("stable");
                assert!(file.read(0, data.len()).await.expect("read").to_vec() == data);
            }
            file.close().await.expect("closed");
            c.close().await;
        });
        served.take().expect("it serves").stop();
    }
}

#[test]
fn long_directories_are_listed_whole_in_every_version() {
    let served = support::served();
    let mut made = Vec::new();
    for (scheme, version) in all() {
        run(async {
            let url = url(scheme, &served, "/data", version);
            let c = client(&url).await;
            let (root, _) = c.find(&url, true).await.expect("the export");
            while made.len() < 3000 {
                let name = format!("a name that fills pages sooner, number {}", made.len()).into_bytes();
                c.create(&root, &name, &NEW).await.expect("made").close().await.expect("closed");
                made.push(name);
            }
            let mut listed: Vec<(Vec<u8>, Attributes)> = Vec::new();
            let (mut at, mut pages) = (Cursor::default(), 0);
            while let Some(page) = c.list(&root, &mut at).await.expect("a page") {
                pages += 1;
                listed.extend(page.into_iter().map(|entry| (entry.name, entry.attributes)));
            }
            assert!(pages > 1, "{pages}");
            assert!(listed.iter().all(|(_, of)| of.kind == FileType::Regular && of.mode == 0o640));
            let mut names: Vec<_> = listed.into_iter().map(|(name, _)| name).collect();
            names.sort();
            let mut expected = made.clone();
            expected.sort();
            assert!(names == expected);
        });
    }
    served.stop();
}

#[test]
fn the_newest_version_is_chosen_and_what_is_not_exported_is_said() {
    let served = support::served();
    run(async {
        let url: Url = format!("nfs://{}/data", served.address()).parse().expect("a URL");
        assert_eq!(client(&url).await.version(), Version::V42);
        assert_eq!(Client::exports(&url, Options::default()).await, Ok(vec!["/data".to_owned()]));
        let three: Url = format!("nfs://{}/dat?vers=3", served.address()).parse().expect("a URL");
        let refused = Client::connect(&three, Options::default()).await.err();
        let Some(Error::NotExported { exports, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(exports, ["/data"]);
        let over_rdma: Url = format!("nfs+rdma://{}/data", served.address()).parse().expect("a URL");
        assert_eq!(client(&over_rdma).await.version(), Version::V42);
        assert_eq!(Client::exports(&over_rdma, Options::default()).await, Ok(vec!["/data".to_owned()]));
        let nobody = "nfs://127.0.0.1:1/data".parse().expect("a URL");
        let refused = Client::connect(&nobody, Options::default()).await.err();
        assert!(refused.is_some_and(|error| error.is_unreachable()));
    });
    served.stop();
}

/// The server's successor at the same address, with the same trees and records.
fn restarted(served: Served) -> Served {
    let mut config = served.config.clone();
    config.portals[0].listen = SocketAddr::from(([127, 0, 0, 1], served.address().port()));
    served.stop();
    support::serving(config)
}

#[test]
fn a_server_that_restarts_loses_nothing_that_a_client_has_written() {
    for (scheme, version) in all() {
        let folder = std::env::temp_dir().join(format!("{scheme}-client-{version}-{}", std::process::id()));
        let mut config = support::config();
        config.clients = Some(folder.clone());
        let served = support::serving(config);
        let url = url(scheme, &served, "/data", version);
        run(async {
            let c = client(&url).await;
            let (root, _) = c.find(&url, true).await.expect("the export");
            let data = content(3 << 20);
            let file = c.create(&root, b"file", &NEW).await.expect("made");
            let (first, last) = data.split_at(2 << 20);
            file.write(0, Chain::from(first.to_vec())).await.expect("written");
            let served = restarted(served);
            // The session is another one, the open is reclaimed, and the verifier has changed.
            file.write(first.len() as u64, Chain::from(last.to_vec())).await.expect("written");
            file.sync().await.expect("stable");
            assert!(file.read(0, data.len()).await.expect("read").to_vec() == data);
            let served = restarted(served);
            file.close().await.expect("closed");
            let other = c.create(&root, b"other", &NEW).await.expect("made");
            other.close().await.expect("closed");
            c.close().await;
            served.stop();
        });
        // Version 3 keeps no records.
        let _ = std::fs::remove_file(folder);
    }
}

//! `stag ls` and `stag info` of NFS: exports, the files of a directory, and all about one file.

use nfs_client::{Attributes, Client, Cursor, Entry, Error, FileType, Handle, Url};
use serde::Serialize;

use super::nfs;
use crate::args::{Info, Ls};
use crate::shown;

/// A file as `ls` and `info` show it.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    mode: String,
    links: u32,
    owner: String,
    group: String,
    bytes: u64,
    modified: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// All about a file and its server.
#[derive(Debug, Serialize)]
struct Facts {
    url: String,
    server: String,
    version: String,
    max_read_bytes: u32,
    max_write_bytes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_s: Option<u32>,
    #[serde(flatten)]
    file: Shown,
    fileid: u64,
    used_bytes: u64,
    total_bytes: u64,
    available_bytes: u64,
}

fn letter(kind: FileType) -> (char, &'static str) {
    match kind {
        FileType::Regular | FileType::NamedAttr => ('-', "file"),
        FileType::Directory | FileType::AttrDir => ('d', "directory"),
        FileType::Block => ('b', "block device"),
        FileType::Character => ('c', "character device"),
        FileType::Symlink => ('l', "symlink"),
        FileType::Socket => ('s', "socket"),
        FileType::Fifo => ('p', "fifo"),
    }
}

/// Permissions as `ls -l` shows them.
fn permissions(kind: FileType, mode: u32) -> String {
    let mut text = String::from(letter(kind).0);
    for (shift, special, set) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => set,
            (false, true) => set.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

async fn shown(client: &Client, name: &[u8], handle: &Handle, of: &Attributes) -> Result<Shown, Error> {
    let target = match of.kind {
        FileType::Symlink => Some(shown::text(&client.read_link(handle).await?)),
        _ => None,
    };
    Ok(Shown {
        name: shown::text(name),
        kind: letter(of.kind).1,
        mode: permissions(of.kind, of.mode),
        links: of.links,
        owner: shown::text(of.owner.as_bytes()),
        group: shown::text(of.group.as_bytes()),
        bytes: of.size,
        modified: shown::time(of.mtime.seconds),
        target,
    })
}

/// All entries of a directory, by their names.
async fn entries(client: &Client, directory: &Handle) -> Result<Vec<Entry>, Error> {
    let (mut at, mut all) = (Cursor::default(), Vec::new());
    while let Some(page) = client.list(directory, &mut at).await? {
        all.extend(page);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

pub async fn ls(url: &Url, args: &Ls) -> Result<String, Error> {
    if url.components().next().is_none() {
        match Client::exports(url, nfs::options(&args.connect)).await {
            Ok(exports) => return Ok(show_exports(url, &exports, args.json)),
            // A server of version 4 alone has no MOUNT: its exports are in its root directory.
            Err(Error::Unserved { .. } | Error::Connect { .. } | Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let client = nfs::connect(url, &args.connect).await?;
    let listed = list(&client, url).await;
    client.close().await;
    let listed = listed?;
    if args.json {
        return Ok(serde_json::to_string_pretty(&listed).unwrap_or_default() + "\n");
    }
    let width = |of: fn(&Shown) -> usize| listed.iter().map(of).max().unwrap_or(0);
    let links = width(|one| one.links.to_string().len());
    let (owner, group) = (width(|one| one.owner.chars().count()), width(|one| one.group.chars().count()));
    let bytes = width(|one| one.bytes.to_string().len());
    let line = |one: &Shown| {
        let Shown { name, mode, modified, .. } = one;
        let target = one.target.as_ref().map_or_else(String::new, |target| format!(" -> {target}"));
        format!(
            "{mode} {:>links$} {:<owner$} {:<group$} {:>bytes$} {modified} {name}{target}\n",
            one.links, one.owner, one.group, one.bytes
        )
    };
    Ok(listed.iter().map(line).collect())
}

fn show_exports(url: &Url, exports: &[String], json: bool) -> String {
    let urls: Vec<String> =
        exports.iter().map(|export| url.with_path(export.as_bytes().to_vec()).to_string()).collect();
    match json {
        true => serde_json::to_string_pretty(&urls).unwrap_or_default() + "\n",
        false => urls.into_iter().map(|url| url + "\n").collect(),
    }
}

async fn list(client: &Client, url: &Url) -> Result<Vec<Shown>, Error> {
    let (handle, of) = client.find(url, false).await?;
    if of.kind != FileType::Directory {
        let name = url.components().last().unwrap_or_default();
        return Ok(vec![shown(client, name, &handle, &of).await?]);
    }
    let mut listed = Vec::new();
    for Entry { name, handle, attributes } in entries(client, &handle).await? {
        listed.push(shown(client, &name, &handle, &attributes).await?);
    }
    Ok(listed)
}

/// Describes the file of `url` and its server.
pub async fn info(url: &Url, args: &Info) -> Result<String, Error> {
    let client = nfs::connect(url, &args.connect).await?;
    let facts = facts(&client, url).await;
    client.close().await;
    let facts = facts?;
    if args.json {
        return Ok(serde_json::to_string_pretty(&facts).unwrap_or_default() + "\n");
    }
    let size = |bytes: u64| backing::size::Size(bytes).to_string();
    let file = &facts.file;
    let target = file.target.as_ref().map_or_else(String::new, |target| format!(" to {target}"));
    let lease = facts.lease_s.map_or_else(String::new, |lease| format!(", lease {lease} s"));
    Ok(format!(
        "{}\n  server      {}, NFS {}{lease}\n  transfers   reads of up to {}, writes of up to {}\n  \
         file        {}{target}, {} bytes, {} allocated\n  permissions {}, owner {}, group {}, {} links\n  \
         modified    {} UTC\n  file id     {}\n  file system {}, {} available\n",
        facts.url,
        facts.server,
        facts.version,
        size(facts.max_read_bytes.into()),
        size(facts.max_write_bytes.into()),
        file.kind,
        file.bytes,
        size(facts.used_bytes),
        file.mode,
        file.owner,
        file.group,
        file.links,
        file.modified,
        facts.fileid,
        size(facts.total_bytes),
        size(facts.available_bytes),
    ))
}

async fn facts(client: &Client, url: &Url) -> Result<Facts, Error> {
    let (handle, of) = client.find(url, false).await?;
    let space = client.space(&handle).await?;
    let (max_read_bytes, max_write_bytes) = client.sizes();
    Ok(Facts {
        url: url.to_string(),
        server: client.place().to_owned(),
        version: client.version().to_string(),
        max_read_bytes,
        max_write_bytes,
        lease_s: client.lease_s(),
        file: shown(client, url.components().last().unwrap_or(b"/"), &handle, &of).await?,
        fileid: of.fileid,
        used_bytes: of.used,
        total_bytes: space.total,
        available_bytes: space.available,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_shown_as_ls_shows_them() {
        assert_eq!(permissions(FileType::Regular, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(permissions(FileType::Symlink, 0o6750), "lrwsr-s---");
        assert_eq!(permissions(FileType::Fifo, 0o4000), "p--S------");
    }
}

//! The procedures that are about one file, or its file system.

use nfs::v3::{
    self, Access, AccessOk, Commit, CommitOk, FsInfoOk, FsStatOk, Handle, Outcome, Path, PathConfOk, Read,
    ReadLinkOk, ReadOk, Results, SetAttr, Status, Wcc, Write, WriteOk, properties,
};
use runtime::Chain;

use super::{Call, convert, failed};
use crate::file::File;
use crate::records::MOST_DATA;
use crate::reply::Reply;

pub(super) async fn get_attributes(call: &Call<'_>, handle: Handle<'_>) -> Reply {
    let outcome = match call.file(handle) {
        Err(status) => Outcome::Err(status, ()),
        Ok(file) => match file.tree().attributes(&file.node).await {
            Ok(attributes) => Outcome::Ok(convert::attributes(&file.export, &attributes)),
            Err(error) => Outcome::Err(convert::status(error), ()),
        },
    };
    call.reply(&Results::GetAttr(outcome))
}

pub(super) async fn set_attributes(call: &Call<'_>, what: SetAttr<'_>) -> Reply {
    let outcome = match (call.file(what.object).and_then(File::writable), convert::set(&what.attributes)) {
        (Err(status), _) => Outcome::Err(status, Wcc::default()),
        (Ok(file), None) => Outcome::Err(Status::Inval, file.wcc().await),
        (Ok(file), Some(set)) => {
            let guard = what.guard.map(convert::tree_time);
            let change = match set.size {
                Some(_) => call.change_data(&file),
                None => call.change(&file),
            };
            let _change = match change {
                Ok(change) => change,
                Err(status) => {
                    return call.reply(&Results::SetAttr(Outcome::Err(status, file.wcc().await)));
                }
            };
            match file.tree().set_attributes(&file.caller, &file.node, &set, guard).await {
                Ok(changed) => Outcome::Ok(convert::changed(&file.export, &changed)),
                Err(error) => {
                    file.note(error);
                    Outcome::Err(convert::status(error), file.wcc().await)
                }
            }
        }
    };
    call.reply(&Results::SetAttr(outcome))
}

pub(super) async fn access(call: &Call<'_>, what: Access<'_>) -> Reply {
    let outcome = match call.file(what.object) {
        Err(status) => Outcome::Err(status, None),
        Ok(file) => match file.access().await {
            Ok((bits, of)) => {
                let attributes = Some(convert::attributes(&file.export, &of));
                Outcome::Ok(AccessOk { attributes, access: bits & what.access })
            }
            Err(error) => failed(&file, error).await,
        },
    };
    call.reply(&Results::Access(outcome))
}

pub(super) async fn read_link(call: &Call<'_>, handle: Handle<'_>) -> Reply {
    let file = match call.file(handle) {
        Ok(file) => file,
        Err(status) => return call.reply(&Results::ReadLink(Outcome::Err(status, None))),
    };
    let target = file.tree().read_link(&file.caller, &file.node).await;
    let outcome = match &target {
        Ok(target) => {
            let attributes = Some(convert::attributes(&file.export, &target.attributes));
            match Path::new(&target.path) {
                Ok(path) => Outcome::Ok(ReadLinkOk { attributes, path }),
                Err(_) => Outcome::Err(Status::NameTooLong, attributes),
            }
        }
        Err(error) => failed(&file, *error).await,
    };
    let length = match &outcome {
        Outcome::Ok(ok) => Some(ok.path.bytes().len()),
        Outcome::Err(..) => None,
    };
    let reply = call.reply(&Results::ReadLink(outcome));
    match length {
        Some(length) => reply.ending_with(length),
        None => reply,
    }
}

pub(super) async fn read(call: &Call<'_>, what: Read<'_>) -> Reply {
    let file = match call.file(what.file) {
        Ok(file) => file,
        Err(status) => return call.reply(&Results::Read(Outcome::Err(status, None))),
    };
    call.client.admit(&file, false, what.count.min(MOST_DATA).into()).await;
    if let Err(status) = call.may_read(&file) {
        return call.reply(&Results::Read(Outcome::Err(status, file.attributes().await)));
    }
    let len = what.count.min(MOST_DATA) as usize;
    match file.tree().read(&file.caller, &file.node, what.offset, len).await {
        Ok(read) => {
            let count = read.data.len() as u32;
            file.tally.count(|counts| counts.read_bytes += u64::from(count));
            let attributes = Some(convert::attributes(&file.export, &read.attributes));
            let ok = ReadOk { attributes, count, eof: read.eof, length: count };
            call.reply(&Results::Read(Outcome::Ok(ok))).and_data(read.data)
        }
        Err(error) => call.reply(&Results::Read(failed(&file, error).await)),
    }
}

pub(super) async fn write(call: &Call<'_>, what: Write<'_>, data: Chain) -> Reply {
    let outcome = match call.file(what.file).and_then(File::writable) {
        Err(status) => Outcome::Err(status, Wcc::default()),
        // RFC 1813 §3.3.7: the count and the length of the data are one.
        Ok(file) if what.count != what.length || what.count > MOST_DATA => {
            Outcome::Err(Status::Inval, file.wcc().await)
        }
        Ok(file) => {
            call.client.admit(&file, true, what.length.into()).await;
            let _change = match call.change_data(&file) {
                Ok(change) => change,
                Err(status) => return call.reply(&Results::Write(Outcome::Err(status, file.wcc().await))),
            };
            let stability = convert::stability(what.stable);
            match file.tree().write(&file.caller, &file.node, what.offset, data, stability).await {
                Ok(written) => {
                    file.tally.count(|counts| counts.written_bytes += written.len as u64);
                    Outcome::Ok(WriteOk {
                        file: convert::changed(&file.export, &written.file),
                        count: written.len as u32,
                        committed: convert::stable(written.stability),
                        verifier: written.verifier.to_be_bytes(),
                    })
                }
                Err(error) => {
                    file.note(error);
                    Outcome::Err(convert::status(error), file.wcc().await)
                }
            }
        }
    };
    call.reply(&Results::Write(outcome))
}

pub(super) async fn commit(call: &Call<'_>, what: Commit<'_>) -> Reply {
    let outcome = match call.file(what.file).and_then(File::writable) {
        Err(status) => Outcome::Err(status, Wcc::default()),
        Ok(file) => {
            let commit = file.tree().commit(&file.caller, &file.node, what.offset, what.count.into());
            match commit.await {
                Ok(committed) => Outcome::Ok(CommitOk {
                    file: convert::changed(&file.export, &committed.file),
                    verifier: committed.verifier.to_be_bytes(),
                }),
                Err(error) => {
                    file.note(error);
                    Outcome::Err(convert::status(error), file.wcc().await)
                }
            }
        }
    };
    call.reply(&Results::Commit(outcome))
}

pub(super) async fn file_system_space(call: &Call<'_>, handle: Handle<'_>) -> Reply {
    let outcome = match call.file(handle) {
        Err(status) => Outcome::Err(status, None),
        Ok(file) => match file.tree().space(&file.caller, &file.node).await {
            Ok(space) => Outcome::Ok(FsStatOk {
                attributes: file.attributes().await,
                total_bytes: space.bytes,
                free_bytes: space.free,
                available_bytes: space.available,
                total_files: space.files,
                free_files: space.files_free,
                available_files: space.files_free,
                invariant_s: 0,
            }),
            Err(error) => failed(&file, error).await,
        },
    };
    call.reply(&Results::FsStat(outcome))
}

pub(super) async fn file_system_limits(call: &Call<'_>, handle: Handle<'_>) -> Reply {
    let outcome = match call.file(handle) {
        Err(status) => Outcome::Err(status, None),
        Ok(file) => {
            let limits = file.tree().limits();
            Outcome::Ok(FsInfoOk {
                attributes: file.attributes().await,
                read_max: MOST_DATA,
                read_preferred: MOST_DATA,
                read_multiple: 4096,
                write_max: MOST_DATA,
                write_preferred: MOST_DATA,
                write_multiple: 4096,
                dir_preferred: 64 << 10,
                max_file_size: limits.file_size,
                time_delta: convert::time(limits.time),
                properties: properties::LINK
                    | properties::SYMLINK
                    | properties::HOMOGENEOUS
                    | properties::CAN_SET_TIME,
            })
        }
    };
    call.reply(&Results::FsInfo(outcome))
}

pub(super) async fn path_limits(call: &Call<'_>, handle: Handle<'_>) -> Reply {
    let outcome = match call.file(handle) {
        Err(status) => Outcome::Err(status, None),
        Ok(file) => {
            let limits = file.tree().limits();
            Outcome::Ok(PathConfOk {
                attributes: file.attributes().await,
                max_links: limits.links,
                max_name: limits.name.min(v3::MAX_NAME as u32),
                no_truncation: true,
                chown_restricted: true,
                case_insensitive: false,
                case_preserving: true,
            })
        }
    };
    call.reply(&Results::PathConf(outcome))
}

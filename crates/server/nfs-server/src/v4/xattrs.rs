//! The operations on extended attributes (RFC 8276 §8).

use nfs::v4::{ListXattrs, ListXattrsOk, Name, Outcome, Results, SetXattr, SetXattrOption, Status};
use rpc::xdr::{List, Opaque};

use super::compound::{Compound, Done, Results as Reply};
use super::convert;

/// Checks the name of an attribute.
fn checked(name: Name<'_>) -> Result<&[u8], Status> {
    let name = name.bytes();
    if name.is_empty() || name.contains(&0) { Err(Status::Inval) } else { Ok(name) }
}

pub(super) async fn get(c: &Compound<'_>, name: Name<'_>, to: &mut Reply<'_, '_>) -> Done {
    let file = c.file(Status::NoXattr)?;
    let name = checked(name)?;
    let value = file.done(file.tree().extended_attribute(&file.caller, &file.node, name).await)?;
    let value = Opaque::new(&value).map_err(|_| Status::Xattr2Big)?;
    to.push(&Results::GetXattr(Outcome::Ok(value)));
    Ok(())
}

/// Sets or removes an attribute. The results are the same on the wire.
async fn change(
    c: &Compound<'_>,
    name: Name<'_>,
    value: Option<&[u8]>,
    create: Option<bool>,
) -> Result<nfs::v4::ChangeInfo, Status> {
    let file = c.writable()?;
    let name = checked(name)?;
    let _change = c.changes().of(file)?;
    let set = file.tree().set_extended_attribute(&file.caller, &file.node, name, value, create);
    Ok(convert::changed(&file.done(set.await)?))
}

pub(super) async fn set(c: &Compound<'_>, what: &SetXattr<'_>, to: &mut Reply<'_, '_>) -> Done {
    let create = match what.option {
        SetXattrOption::Either => None,
        SetXattrOption::Create => Some(true),
        SetXattrOption::Replace => Some(false),
    };
    let changed = change(c, what.name, Some(what.value.bytes()), create).await?;
    to.push(&Results::SetXattr(Outcome::Ok(changed)));
    Ok(())
}

pub(super) async fn remove(c: &Compound<'_>, name: Name<'_>, to: &mut Reply<'_, '_>) -> Done {
    let changed = change(c, name, None, None).await?;
    to.push(&Results::RemoveXattr(Outcome::Ok(changed)));
    Ok(())
}

/// LISTXATTRS. A cookie is the number of names that the client has.
pub(super) async fn list(c: &Compound<'_>, what: ListXattrs, to: &mut Reply<'_, '_>) -> Done {
    let file = c.file(Status::NotSupp)?;
    let all = file.done(file.tree().extended_attributes(&file.caller, &file.node).await)?;
    let begin = usize::try_from(what.cookie).unwrap_or(usize::MAX);
    let rest = all.get(begin..).ok_or(Status::BadCookie)?;
    // The cookie, the number of names, and the end.
    let left = c.left(to.position() + 8).unwrap_or(0).min(what.max_count as usize);
    let mut left = left.checked_sub(8 + 4 + 4).ok_or(Status::TooSmall)?;
    let mut names: Vec<Name<'_>> = Vec::new();
    for name in rest {
        let Some(less) = left.checked_sub(4 + name.len().next_multiple_of(4)) else { break };
        left = less;
        names.extend(Opaque::new(name).ok());
    }
    if names.is_empty() && !rest.is_empty() {
        return Err(Status::TooSmall.into());
    }
    let cookie = what.cookie + names.len() as u64;
    let eof = names.len() == rest.len();
    to.push(&Results::ListXattrs(Outcome::Ok(ListXattrsOk { cookie, names: List::of(&names), eof })));
    Ok(())
}

//! Errors with objects: what happened, where, and what to do.

use iscsi_client::objects::{ObjectError, Why};

use crate::client::connect::ConnectError;
use crate::exit::Exit;
use crate::out::OutError;

/// An error of `stag osd`.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// No session with the device.
    #[error("{place}: {error}")]
    Connect {
        /// Its URL.
        place: String,
        error: ConnectError,
    },
    #[error("{place}: {error}{}", hint(.error, .place).map_or_else(String::new, |hint| format!("\n      {hint}")))]
    Object {
        /// The URL or path concerned.
        place: String,
        error: ObjectError,
    },
    #[error("{place}: {error}")]
    Io { place: String, error: std::io::Error },
    /// stdout takes no more.
    #[error(transparent)]
    Output(#[from] OutError),
    /// The request is impossible.
    #[error("{what}\n      {instead}")]
    Wrong {
        what: String,
        /// Advice.
        instead: String,
    },
    /// Some of many files failed, each of which was reported.
    #[error("{0} could not be done")]
    Some(u64),
}

impl OsdError {
    /// An impossible request, with advice.
    pub fn wrong(what: impl Into<String>, instead: impl Into<String>) -> Self {
        Self::Wrong { what: what.into(), instead: instead.into() }
    }

    /// Makes errors of the device about `place`.
    pub fn at(place: impl std::fmt::Display) -> impl FnOnce(ObjectError) -> Self {
        move |error| Self::Object { place: place.to_string(), error }
    }

    /// Makes errors of the system about a file.
    pub fn io(place: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Io { place: place.display().to_string(), error }
    }

    /// Whether to stop, since other files would fail too.
    pub fn ends_all(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Output(_) | Self::Wrong { .. } | Self::Some(_) => true,
            Self::Io { .. } => false,
            Self::Object { error, .. } => !matches!(error.why(), Some(Why::NotFound | Why::Attribute)),
        }
    }

    /// Shows the error, and returns the exit status.
    pub fn show(&self) -> Exit {
        if let Self::Output(error) = self {
            return error.show();
        }
        say!("stag: {self}");
        match self {
            Self::Connect { error: ConnectError::Session(error), .. } if error.is_unreachable() => {
                Exit::Unreachable
            }
            Self::Object { error, .. } if error.is_unreachable() => Exit::Unreachable,
            _ => Exit::Failed,
        }
    }
}

fn hint(error: &ObjectError, place: &str) -> Option<String> {
    Some(match error.why()? {
        Why::NotFound => format!("what there is: stag osd ls {}", parent(place)),
        Why::Exists => "choose another id, or leave it out and the device chooses one".into(),
        Why::NotEmpty => "-r removes what is in it too".into(),
        Why::Quota => {
            "raise the quota of its partition: stag osd attr set URL/PARTITION capacity-quota=u64:BYTES"
                .into()
        }
        Why::Full => "remove something, or give the device more room (capacity=SIZE of the unit)".into(),
        Why::Denied => {
            "name a credential that permits it with --credential; stag osd grant makes them".into()
        }
        Why::BadCredential => "make a new credential: stag osd grant".into(),
        _ => return None,
    })
}

/// The device or partition of a URL.
fn parent(place: &str) -> &str {
    let place = place.split_whitespace().next().unwrap_or(place);
    // Not above the unit: SCHEME://HOST/IQN/LUN.
    match place.rsplit_once('/') {
        Some((parent, _)) if parent.matches('/').count() >= 4 => parent,
        _ => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_place_lies_in_is_never_above_its_unit() {
        let unit = "iscsi://h:3260/iqn.2026-01.org.example:t/0";
        assert_eq!(parent(unit), unit);
        assert_eq!(parent(&format!("{unit}/0x10000")), unit);
        assert_eq!(parent(&format!("{unit}/0x10000/a/b")), format!("{unit}/0x10000/a"));
    }
}

//! Decides which login refusals are permanent, while a lost session reconnects. It only evaluates
//! errors and the time.
//!
//! RFC 7143 §11.13.5 forbids retrying a login that failed by the initiator's fault. Here the same
//! login has worked before, and a target that is just starting may refuse it for a while. So it is
//! retried where that is plausible, and not otherwise.

use std::time::{Duration, Instant};

use iscsi::login::initiator::InitiatorLoginError;
use iscsi::pdu::{LoginStatus, StatusClass};

use crate::error::Error;

/// Consecutive mismatched logins that count as permanent.
const MISFITS: u32 = 3;
/// The part of the reconnect time during which a target may be missing.
const PART_FOR_A_START: u32 = 6;

/// The history of login refusals of a session.
#[derive(Debug)]
pub(super) struct Refusals {
    start: Duration,
    misfits: u32,
    not_found_since: Option<Instant>,
}

impl Refusals {
    /// For a reconnect of at most `time`.
    pub fn new(time: Duration) -> Self {
        Self { start: time / PART_FOR_A_START, misfits: 0, not_found_since: None }
    }

    /// Records the error of the newest login; returns whether it is permanent.
    pub fn settle(&mut self, error: &Error, now: Instant) -> bool {
        self.misfits = if does_not_fit(error) { self.misfits + 1 } else { 0 };
        self.not_found_since = is_not_found(error).then(|| self.not_found_since.unwrap_or(now));
        let is_gone = self.not_found_since.is_some_and(|since| now >= since + self.start);
        is_final(error) || is_gone || self.misfits >= MISFITS
    }
}

/// Whether a retry is useless: the target knows this initiator and refuses it.
pub(super) fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::Login(InitiatorLoginError::Status(
            LoginStatus::AuthenticationFailure
                | LoginStatus::AuthorizationFailure
                | LoginStatus::TargetRemoved
        )) | Error::Login(InitiatorLoginError::Chap(_))
    )
}

/// Whether the target only refuses a further connection.
pub(super) fn no_more(error: &Error) -> bool {
    use LoginStatus::{CannotIncludeInSession, TooManyConnections};
    matches!(error, Error::Login(InitiatorLoginError::Status(TooManyConnections | CannotIncludeInSession)))
}

/// Whether the target is not found there: it was removed, or its server has just restarted and
/// already listens.
fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Login(InitiatorLoginError::Status(LoginStatus::NotFound)))
}

/// Whether the login's parameters do not match the target's, for example after a restart with other
/// settings: the next login would fail too. Once, it may also be a corrupted byte, since no digest
/// protects the login.
fn does_not_fit(error: &Error) -> bool {
    let Error::Login(error) = error else { return false };
    match error {
        InitiatorLoginError::Negotiation(_)
        | InitiatorLoginError::Protocol(_)
        | InitiatorLoginError::Text(_) => true,
        InitiatorLoginError::Status(status) => matches!(
            status,
            LoginStatus::InitiatorError
                | LoginStatus::UnsupportedVersion
                | LoginStatus::MissingParameter
                | LoginStatus::SessionTypeNotSupported
                | LoginStatus::InvalidDuringLogin
        ),
        InitiatorLoginError::UnknownStatus(class, _) => *class == StatusClass::InitiatorError.code(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: LoginStatus) -> Error {
        InitiatorLoginError::Status(status).into()
    }

    #[test]
    fn a_refusal_by_name_is_for_good_at_once() {
        let now = Instant::now();
        for code in [LoginStatus::AuthenticationFailure, LoginStatus::TargetRemoved] {
            assert!(Refusals::new(Duration::from_secs(60)).settle(&status(code), now), "{code}");
        }
    }

    #[test]
    fn what_does_not_fit_is_for_good_when_it_is_said_thrice_in_a_row() {
        let now = Instant::now();
        let mut refusals = Refusals::new(Duration::from_secs(60));
        let misfit = status(LoginStatus::UnsupportedVersion);
        assert!(!refusals.settle(&misfit, now) && !refusals.settle(&misfit, now));
        // Another error between them: it may have been temporary.
        assert!(!refusals.settle(&Error::TimedOut("login"), now));
        assert!(!refusals.settle(&misfit, now));
        assert!(!refusals.settle(&InitiatorLoginError::UnknownStatus(2, 0x77).into(), now));
        assert!(refusals.settle(&InitiatorLoginError::Protocol("it makes no sense").into(), now));
    }

    #[test]
    fn a_target_that_is_not_found_is_given_time_to_start() {
        let begun = Instant::now();
        let mut refusals = Refusals::new(Duration::from_secs(60));
        let after = |seconds| begun + Duration::from_secs(seconds);
        let not_found = status(LoginStatus::NotFound);
        assert!(!refusals.settle(&not_found, after(0)) && !refusals.settle(&not_found, after(9)));
        assert!(!refusals.settle(&Error::Lost("it was started again".into()), after(10)));
        assert!(!refusals.settle(&not_found, after(11)) && !refusals.settle(&not_found, after(20)));
        assert!(refusals.settle(&not_found, after(21)));
    }

    #[test]
    fn a_target_that_cannot_now_is_tried_to_the_end() {
        let begun = Instant::now();
        let mut refusals = Refusals::new(Duration::from_secs(60));
        for second in 0..60 {
            for code in
                [LoginStatus::ServiceUnavailable, LoginStatus::OutOfResources, LoginStatus::TargetError]
            {
                assert!(!refusals.settle(&status(code), begun + Duration::from_secs(second)), "{code}");
            }
        }
    }
}

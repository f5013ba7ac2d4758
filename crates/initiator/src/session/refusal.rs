//! Which refusals of a login are for good, while a lost session is made anew. It knows errors and the time, and does nothing.
//!
//! RFC 7143 §11.13.5 has no login tried again that fails by the initiator's fault. Here it is one that has worked before, and a
//! target that is just being started may say so for a while; so it is tried again where that may be, and not where it may not.

use std::time::{Duration, Instant};

use iscsi::login::initiator::InitiatorLoginError;
use iscsi::pdu::{LoginStatus, StatusClass};

use crate::error::Error;

/// Logins in a row that do not fit, after which that is no accident.
const MISFITS: u32 = 3;
/// The part of the time for new logins for which a target that is not found is waited for.
const PART_FOR_A_START: u32 = 6;

/// What a session's new logins have been refused with.
#[derive(Debug)]
pub(super) struct Refusals {
    start: Duration,
    misfits: u32,
    not_found_since: Option<Instant>,
}

impl Refusals {
    /// Of logins that may take `time` in all.
    pub fn new(time: Duration) -> Self {
        Self { start: time / PART_FOR_A_START, misfits: 0, not_found_since: None }
    }

    /// Takes in why the newest login has failed; says whether no other can do better.
    pub fn settle(&mut self, error: &Error, now: Instant) -> bool {
        self.misfits = if does_not_fit(error) { self.misfits + 1 } else { 0 };
        self.not_found_since = is_not_found(error).then(|| self.not_found_since.unwrap_or(now));
        let is_gone = self.not_found_since.is_some_and(|since| now >= since + self.start);
        is_final(error) || is_gone || self.misfits >= MISFITS
    }
}

/// Whether trying again is of no use: the target knows us and does not want us.
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

/// Whether the target says that it takes no further connection, and nothing worse.
pub(super) fn no_more(error: &Error) -> bool {
    use LoginStatus::{CannotIncludeInSession, TooManyConnections};
    matches!(error, Error::Login(InitiatorLoginError::Status(TooManyConnections | CannotIncludeInSession)))
}

/// Whether nobody knows the target where it was: it was removed, or who serves it was started again and listens already.
fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Login(InitiatorLoginError::Status(LoginStatus::NotFound)))
}

/// Whether what we say in a login and what the target takes or answers do not fit, as when it was started again with other settings:
/// the next login would say the same. Once it may be a wire that spoils bytes, which no digest guards during login.
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
        InitiatorLoginError::Chap(_) => false,
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
        // Another error between them: it may have been an accident.
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

//! Redirected logins.

use std::time::Duration;

use crate::support::{Client, address, server};
use iscsi::chap::{Credential, Secret};
use iscsi::discovery::TargetAddress;
use iscsi::login::initiator::Chap as InitiatorChap;
use iscsi_server::config::{Auth, Chap, Redirect};

fn redirect(permanent: bool, after_auth: bool) -> Option<Redirect> {
    let address = TargetAddress::parse("192.0.2.7:3261,5").expect("an address");
    Some(Redirect { address, permanent, after_auth })
}

fn refusal(to: std::net::SocketAddr, chap: Option<&str>) -> String {
    let mut config = Client::config(1);
    config.chap = chap.map(|secret| InitiatorChap {
        credential: Credential { name: "alice".into(), secret: Secret::new(secret.as_bytes()) },
        target: None,
        hashes: vec![],
    });
    Client::connect(to).log_in(config).expect_err("nobody is let in")
}

#[test]
fn a_target_that_is_elsewhere_says_where_without_a_portal_group() {
    for permanent in [false, true] {
        let server = server(|config| config.targets[0].redirect = redirect(permanent, true));
        let said = refusal(address(&server), None);
        assert!(
            said.contains("\"192.0.2.7:3261\"") && said.contains(&format!("permanently: {permanent}")),
            "{said}"
        );
        server.stop(Duration::from_millis(100)).expect("everything is flushed");
    }
}

#[test]
fn who_has_to_prove_who_he_is_learns_of_the_other_place_before_or_after_as_configured() {
    for after_auth in [false, true] {
        let server = server(|config| {
            let target = &mut config.targets[0];
            target.redirect = redirect(false, after_auth);
            let alice = Credential { name: "alice".into(), secret: Secret::new(*b"alicesecret12") };
            target.auth = Auth::Chap(Chap { users: vec![alice], mutual: None, hashes: vec![] });
        });
        assert!(refusal(address(&server), Some("alicesecret12")).contains("192.0.2.7:3261"));
        let wrong = refusal(address(&server), Some("malloryssecret"));
        assert_eq!(wrong.contains("192.0.2.7"), !after_auth, "{wrong}");
        server.stop(Duration::from_millis(100)).expect("everything is flushed");
    }
}

//! Addresses and options of a socket, and its set-up for its path.

mod common;

use std::time::Duration;

use common::{pair, run};
use runtime::{ListenOptions, TcpListener, TcpStream};

#[test]
fn addresses_and_options_are_those_of_the_socket() {
    run(async {
        let (a, b) = pair().await;
        assert_eq!(a.local_addr().unwrap(), b.peer_addr().unwrap());
        assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
        a.set_nodelay(false).unwrap();
        let alive =
            runtime::Keepalive { idle: Duration::from_secs(5), interval: Duration::from_secs(1), count: 3 };
        a.set_keepalive(Some(alive)).unwrap();
        a.set_keepalive(None).unwrap();
        a.set_user_timeout(Duration::from_secs(3)).unwrap();
        a.set_recv_buffer(1 << 16).unwrap();
        a.set_send_buffer(1 << 16).unwrap();
    });
}

#[test]
fn within_a_machine_nothing_is_paced_unless_it_is_asked_for() {
    run(async {
        let (a, b) = pair().await;
        assert_eq!((a.congestion().unwrap(), b.congestion().unwrap()), ("reno".into(), "reno".into()));
        // A listener for all addresses knows its peers only when they are there.
        let any = TcpListener::bind("0.0.0.0:0".parse().unwrap(), ListenOptions::default());
        let mut any = any.unwrap();
        let port = any.local_addr().unwrap().port();
        let own = runtime::SystemLimits::read().congestion;
        let path = runtime::PathOptions { congestion: Some(own.clone()), ..runtime::PathOptions::default() };
        let to = ([127, 0, 0, 1], port).into();
        let c = TcpStream::connect_over(to, Duration::from_secs(5), &path).await.unwrap();
        assert_eq!(c.congestion().unwrap(), own);
        let d = any.accept().await.unwrap();
        d.unpaced_within_machine();
        assert_eq!(d.congestion().unwrap(), "reno");
    });
}

#[test]
fn a_reserved_port_is_taken_where_it_may_be() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default());
        let mut listener = listener.unwrap();
        let to = listener.local_addr().unwrap();
        let may = std::net::TcpListener::bind("127.0.0.1:700").is_ok();
        let path = runtime::PathOptions { reserved_port: true, ..runtime::PathOptions::default() };
        // A second one, too: the first has the port.
        let mut open = Vec::new();
        for _ in 0..2 {
            let stream = TcpStream::connect_over(to, Duration::from_secs(5), &path).await.unwrap();
            let accepted = listener.accept().await.unwrap();
            let port = stream.local_addr().unwrap().port();
            assert_eq!(accepted.peer_addr().unwrap().port(), port);
            assert!(port < 1024 || !may, "{port}");
            open.push((stream, accepted));
        }
    });
}

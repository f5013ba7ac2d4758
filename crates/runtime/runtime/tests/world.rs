//! A simulated world: cores, sockets and time of one seed, without the kernel's.
#![cfg(feature = "sim")]

use std::time::Duration;

use runtime::sim::{self, Network};
use runtime::{
    Config, Cores, Gather, ListenOptions, TcpListener, TcpStream, channel, now, sleep, spawn, timeout,
};

/// A world with two cores that echo, and a client that sends `rounds` messages over each of three
/// connections.
fn echo(config: sim::Config, rounds: usize) -> sim::Ran<usize> {
    sim::run(config, move || async move {
        let cores = Cores::start(2, Config { spin_us: 0, ..Config::default() }).unwrap();
        let mut listener =
            TcpListener::bind("10.0.0.9:3260".parse().unwrap(), ListenOptions::default()).unwrap();
        let to = listener.local_addr().unwrap();
        let handles = cores.handles().to_vec();
        let accepting = spawn(async move {
            for turn in 0.. {
                let socket = listener.accept().await.unwrap().into_fd();
                handles[turn % handles.len()]
                    .run(move || async move {
                        let stream = TcpStream::from_fd(socket).unwrap();
                        while let Ok(bytes) = stream.recv_some(3000).await {
                            if bytes.is_empty() {
                                return;
                            }
                            let mut gather = Gather::new();
                            gather.push(bytes.into_buf());
                            if stream.send(gather).await.0.is_err() {
                                return;
                            }
                        }
                    })
                    .unwrap();
            }
        });
        let mut clients = Vec::new();
        for number in 0..3u8 {
            clients.push(spawn(async move {
                let stream = TcpStream::connect(to, Duration::from_secs(5)).await.unwrap();
                let mut back = 0;
                for round in 0..rounds {
                    let len = 1 + (round * 997) % 70_000;
                    let mut gather = Gather::new();
                    gather.push_copy(&vec![number; len]);
                    if stream.send(gather).await.0.is_err() {
                        break;
                    }
                    let mut got = 0;
                    while got < len {
                        match stream.recv_some(1 << 16).await {
                            Ok(bytes) if !bytes.is_empty() => {
                                assert!(bytes.iter().all(|byte| *byte == number));
                                got += bytes.len();
                            }
                            _ => return back,
                        }
                    }
                    back += got;
                }
                back
            }));
        }
        let mut back = 0;
        for client in clients {
            back += client.await.unwrap();
        }
        accepting.abort();
        cores.stop();
        cores.join().unwrap();
        back
    })
}

fn all_of(rounds: usize) -> usize {
    3 * (0..rounds).map(|round| 1 + (round * 997) % 70_000).sum::<usize>()
}

#[test]
fn a_seed_is_one_run_and_another_seed_another() {
    let one = echo(sim::Config::new(7), 40);
    let again = echo(sim::Config::new(7), 40);
    let other = echo(sim::Config::new(8), 40);
    assert_eq!((one.output, other.output), (all_of(40), all_of(40)));
    assert_eq!((one.trace, one.turns, one.elapsed), (again.trace, again.turns, again.elapsed));
    assert_ne!(one.trace, other.trace);
}

#[test]
fn a_slow_network_takes_virtual_time_and_none_of_ours() {
    let began = std::time::Instant::now();
    let latency = Duration::from_secs(2);
    let network = Network { latency, jitter: Duration::ZERO, ..Network::default() };
    let ran = echo(sim::Config { network, ..sim::Config::new(1) }, 10);
    assert_eq!(ran.output, all_of(10));
    assert!(ran.elapsed >= latency * 22 && ran.elapsed < latency * 24, "{:?}", ran.elapsed);
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn all_links_share_the_rate_of_their_path() {
    let network = Network { rate: 100_000, ..Network::default() };
    let ran = echo(sim::Config { network, ..sim::Config::new(1) }, 20);
    assert_eq!(ran.output, all_of(20));
    let least = Duration::from_secs(all_of(20) as u64 / 100_000);
    assert!(ran.elapsed >= least && ran.elapsed < 3 * least, "{:?} of {least:?}", ran.elapsed);
}

#[test]
fn a_middlebox_sees_and_changes_what_links_carry() {
    let ran = sim::run(sim::Config::new(1), || async {
        let (tell, hear) = std::sync::mpsc::channel();
        sim::set_middlebox(Box::new(move |link, to_server, bytes| {
            let other = bytes.iter().map(|byte| byte ^ 0xff).collect();
            drop(tell.send((link, to_server, bytes)));
            other
        }));
        let mut listener =
            TcpListener::bind("10.0.0.9:3260".parse().unwrap(), ListenOptions::default()).unwrap();
        let to = listener.local_addr().unwrap();
        let client = spawn(async move { TcpStream::connect(to, Duration::from_secs(5)).await.unwrap() });
        let server = TcpStream::from_fd(listener.accept().await.unwrap().into_fd()).unwrap();
        let client = client.await.unwrap();
        for (from, to) in [(&client, &server), (&server, &client)] {
            let mut gather = Gather::new();
            gather.push_copy(&[1, 2, 3]);
            from.send(gather).await.0.unwrap();
            let mut got = Vec::new();
            while got.len() < 3 {
                got.extend_from_slice(&to.recv_some(3).await.unwrap());
            }
            assert_eq!(got, [0xfe, 0xfd, 0xfc]);
        }
        hear.try_iter().collect::<Vec<_>>()
    });
    let [(link, true, up), (same, false, down)] = &ran.output[..] else { panic!("{:?}", ran.output) };
    assert_eq!((link, up, down), (same, &vec![1, 2, 3], &vec![1, 2, 3]));
}

#[test]
fn resets_and_losses_are_seen_by_both_ends_and_end_no_run() {
    let mut reset = 0;
    for seed in 0..20 {
        let network = Network {
            lost_per_million: 50_000,
            reset_per_million: 20_000,
            segment: 2000,
            window: 9000,
            ..Network::default()
        };
        let ran = echo(sim::Config { network, ..sim::Config::new(seed) }, 20);
        reset += usize::from(ran.output < all_of(20));
    }
    assert!(reset > 3, "{reset} of 20 runs had resets");
}

#[test]
fn timers_blocking_calls_and_waits_outside_share_one_clock() {
    let ran = sim::run(sim::Config::new(3), || async {
        let begin = now();
        let (say, hear) = channel();
        let waiter = spawn(sim::aside(move || hear.recv_timeout(Duration::from_secs(30))));
        sleep(Duration::from_secs(10)).await;
        say.send(5).unwrap();
        assert_eq!(waiter.await.unwrap(), Ok(5));
        assert!(timeout(Duration::from_secs(60), std::future::pending::<()>()).await.is_err());
        sim::aside(|| runtime::nap(Duration::from_secs(100))).await;
        now() - begin
    });
    assert!(
        ran.output > Duration::from_secs(170) && ran.output < Duration::from_secs(171),
        "{:?}",
        ran.output
    );
}

#[test]
#[should_panic(expected = "waits for ever")]
fn a_world_in_which_nothing_can_happen_any_more_is_an_error() {
    sim::run(sim::Config::new(1), std::future::pending::<()>);
}

#[test]
#[should_panic(expected = "not at an end")]
fn a_world_that_goes_on_for_ever_is_an_error() {
    sim::run(sim::Config::new(1), || async {
        loop {
            sleep(Duration::from_secs(1)).await;
        }
    });
}

#[test]
fn nobody_listens_where_a_listener_was_dropped() {
    sim::run(sim::Config::new(1), || async {
        let at = "10.0.0.9:3260".parse().unwrap();
        let listener = TcpListener::bind(at, ListenOptions::default()).unwrap();
        assert!(TcpListener::bind(at, ListenOptions::default()).is_err(), "the address is in use");
        let another = TcpListener::from_fd(listener.into_fd().try_clone().unwrap()).unwrap();
        drop(another);
        let error = TcpStream::connect(at, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        TcpListener::bind(at, ListenOptions::default()).unwrap();
    });
}

//! `stag doctor` checks the network: addresses and ports to listen on, interfaces and their MTUs,
//! socket buffers and congestion control.

use std::io;
use std::net::SocketAddr;

use backing::size::Size;
use runtime::{ListenOptions, SystemLimits, TcpListener};

use super::{Files, Finding};
use crate::config::{Config, Transports};
use crate::serve::help_for;

/// The size to which a socket buffer should be able to grow, bytes: Linux's own default of
/// tcp_wmem. It bounds the bytes in flight of one connection.
const BUFFER: usize = 4 << 20;
/// The MTU of Ethernet. Less is a tunnel's or an overlay's.
const ETHERNET: u64 = 1500;

/// `daemon`: the process of the daemon that runs already; the ports that it holds are no problem.
pub(super) fn look(files: &Files, config: &Config, daemon: Option<u32>) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        addresses(config).into_iter().map(|address| port(files, address, daemon)).collect();
    findings.extend(interfaces(files));
    let limits = SystemLimits::read();
    findings.push(buffers(&limits));
    let available = files.text("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    findings.push(congestion(
        config.limits.congestion.as_ref().map(|wanted| wanted.name()),
        &available,
        &limits,
    ));
    findings
}

/// Addresses of TCP that the daemon would listen on, each once.
fn addresses(config: &Config) -> Vec<SocketAddr> {
    let portals = config.portals.iter().filter(|portal| portal.transports != Transports::Verbs);
    let files = config.nfs_portals().into_iter().filter(|portal| !portal.verbs);
    let http = config.http.iter().map(|http| http.listen);
    let mut all: Vec<SocketAddr> =
        portals.map(|portal| portal.listen).chain(files.map(|portal| portal.listen)).chain(http).collect();
    all.retain(|address| address.port() != 0);
    all.sort();
    all.dedup();
    all
}

fn port(files: &Files, address: SocketAddr, daemon: Option<u32>) -> Finding {
    let error = match TcpListener::bind(address, ListenOptions::default()) {
        Ok(_) => return Finding::ok("port", format!("{address} is free")),
        Err(error) => error,
    };
    let remedy = help_for(&error).unwrap_or("stag serve will fail in the same way");
    if error.kind() != io::ErrorKind::AddrInUse {
        return Finding::critical("port", format!("{address}: {error}"), remedy);
    }
    match holder(files, address.port()) {
        Some((process, _)) if daemon == Some(process) => {
            Finding::ok("port", format!("{address} is the running daemon's"))
        }
        Some((process, name)) => {
            Finding::critical("port", format!("{address} is taken by {name} (process {process})"), remedy)
        }
        // A kernel's target has no process, and another user's process cannot be seen.
        None => Finding::critical(
            "port",
            format!("{address} is taken: by a process of another user, or by the kernel (LIO, knfsd)"),
            remedy,
        ),
    }
}

/// The process that listens on a TCP port, and its name.
fn holder(files: &Files, port: u16) -> Option<(u32, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| files.text(table).unwrap_or_default());
    let inodes = tables.iter().flat_map(|table| table.lines()).filter_map(|line| listener(line, port));
    let sockets: Vec<String> = inodes.map(|inode| format!("socket:[{inode}]")).collect();
    let processes = files.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let mut holding = processes.filter(|process| {
        let held = files.links(&format!("/proc/{process}/fd"));
        held.iter().any(|link| sockets.contains(link))
    });
    let process = holding.next()?;
    Some((process, files.text(&format!("/proc/{process}/comm")).unwrap_or_default()))
}

/// The inode of a socket that listens on `port`, from a line of /proc/net/tcp (proc_net_tcp in the
/// kernel's documentation): number, local address, remote address, state (0A listens), …, inode.
fn listener(line: &str, port: u16) -> Option<&str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, local) = fields.get(1)?.rsplit_once(':')?;
    let listens = *fields.get(3)? == "0A" && u16::from_str_radix(local, 16) == Ok(port);
    fields.get(9).copied().filter(|_| listens)
}

/// Interfaces that carry traffic, one finding each; loopback is left out.
fn interfaces(files: &Files) -> Vec<Finding> {
    let of = |name: &str, what: &str| format!("/sys/class/net/{name}/{what}");
    let names = files.names("/sys/class/net");
    let up = names.iter().filter(|name| {
        // Bridges, tunnels and virtual interfaces can be `unknown`. 772 is ARPHRD_LOOPBACK.
        let state = files.text(&of(name, "operstate"));
        matches!(state.as_deref(), Some("up" | "unknown")) && files.number(&of(name, "type")) != Some(772)
    });
    up.filter_map(|name| {
        let mtu = files.number(&of(name, "mtu"))?;
        let speed = files.text(&of(name, "speed")).and_then(|speed| speed.parse::<u64>().ok());
        let speed = speed.map_or(String::new(), |speed| format!(", {speed} Mb/s"));
        let what = format!("{name} has an MTU of {mtu}{speed}");
        let master = files.number(&of(name, "master/mtu")).filter(|master| *master > mtu);
        Some(if let Some(master) = master {
            Finding::warning(
                "MTU",
                format!("{what}, and its bridge or bond has {master}: longer packets are lost"),
                format!("ip link set {name} mtu {master}"),
            )
        } else if mtu < ETHERNET {
            Finding::warning(
                "MTU",
                format!("{what}: each packet carries little"),
                "it is a tunnel's or an overlay's: serve on an interface of the network itself if there is one",
            )
        } else {
            Finding::ok("MTU", what)
        })
    })
    .collect()
}

fn buffers(limits: &SystemLimits) -> Finding {
    let (send, receive) = (limits.send_auto, limits.recv_auto);
    let size = |bytes: usize| Size(bytes as u64);
    let what = format!("socket buffers grow to {} to send and {} to receive", size(send), size(receive));
    match send.min(receive) < BUFFER {
        true => Finding::warning(
            "buffers",
            format!("{what}: one connection has no more in flight"),
            format!(
                "sysctl net.ipv4.tcp_wmem=\"4096 65536 {0}\" net.ipv4.tcp_rmem=\"4096 131072 {0}\"; `stag tune URL` computes what a path needs",
                4 * BUFFER
            ),
        ),
        false => Finding::ok("buffers", what),
    }
}

/// `wanted` is the configured one; `available` has the kernel's, with spaces between.
fn congestion(wanted: Option<&str>, available: &str, limits: &SystemLimits) -> Finding {
    match wanted {
        Some(wanted) if !available.split_whitespace().any(|name| name == wanted) => Finding::critical(
            "congestion",
            format!("the kernel has no congestion control `{wanted}`; it has {available}"),
            format!("modprobe tcp_{wanted}, or choose another congestion-control"),
        ),
        Some(wanted) => Finding::ok("congestion", format!("{wanted}, as configured")),
        None => Finding::ok("congestion", format!("{}, the system's", limits.congestion)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine;
    use super::*;
    use crate::health::space::Level;

    #[test]
    fn a_port_that_a_process_holds_is_found_with_its_name() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let files = Files { root: "/".into() };
        let (at, own) = (held.local_addr().unwrap(), std::process::id());
        let found = port(&files, at, None);
        assert_eq!(found.level, Level::Critical);
        assert!(found.what.contains(&format!("(process {own})")), "{found:?}");
        assert_eq!(port(&files, at, Some(own)).level, Level::Ok);
        drop(held);
        assert_eq!(port(&files, at, None).level, Level::Ok);
    }

    #[test]
    fn an_address_of_another_machine_is_a_problem() {
        let found = port(&Files { root: "/".into() }, "192.0.2.1:3260".parse().unwrap(), None);
        assert!(found.level == Level::Critical && found.remedy.unwrap().contains("ip address"));
    }

    #[test]
    fn every_listening_line_of_the_table_is_read_and_no_other() {
        let line = "   0: 0100007F:0CBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0";
        assert_eq!(listener(line, 3260), Some("4711"));
        assert_eq!(listener(line, 3261), None);
        assert_eq!(listener(&line.replace(" 0A ", " 01 "), 3260), None, "it is connected");
        for cut in 0..line.len() {
            listener(&line[..cut], 3260);
        }
    }

    #[test]
    fn a_member_with_less_mtu_than_its_bridge_is_found() {
        let interface = |name: &str, kind: &str, mtu: &str| {
            let of = |what| format!("/sys/class/net/{name}/{what}");
            [(of("operstate"), "up".to_owned()), (of("type"), kind.to_owned()), (of("mtu"), mtu.to_owned())]
        };
        let all: Vec<(String, String)> = [
            interface("lo", "772", "65536"),
            interface("eth0", "1", "9000"),
            interface("eth1", "1", "1500"),
            interface("wg0", "65534", "1420"),
        ]
        .concat();
        let mut all: Vec<(&str, &str)> =
            all.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        all.push(("/sys/class/net/eth1/master/mtu", "9000"));
        let (_dir, files) = machine(&all);
        let found = interfaces(&files);
        let levels: Vec<Level> = found.iter().map(|found| found.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Warning, Level::Warning], "{found:?}");
        assert!(found[1].remedy.as_deref() == Some("ip link set eth1 mtu 9000"), "{found:?}");
        assert!(found[2].what.contains("1420"), "{found:?}");
    }

    #[test]
    fn small_buffers_and_a_missing_congestion_control_are_found() {
        let limits = SystemLimits { send_auto: 4 << 20, recv_auto: 6 << 20, ..SystemLimits::default() };
        assert_eq!(buffers(&limits).level, Level::Ok);
        assert_eq!(buffers(&SystemLimits { send_auto: 1 << 20, ..limits.clone() }).level, Level::Warning);
        assert_eq!(congestion(None, "reno cubic", &limits).level, Level::Ok);
        assert_eq!(congestion(Some("cubic"), "reno cubic", &limits).level, Level::Ok);
        let found = congestion(Some("bbr"), "reno cubic", &limits);
        assert!(found.level == Level::Critical && found.remedy.unwrap().contains("modprobe tcp_bbr"));
    }

    #[test]
    fn each_address_is_tried_once() {
        let text = "[[portal]]\nlisten = [\"127.0.0.1:3260\", \"127.0.0.1:0\"]\n[nfs]\nlisten = [\"127.0.0.1:2049\"]\n[http]\nlisten = \"127.0.0.1\"\n";
        let place = crate::config::Place::new(std::path::Path::new("/"));
        let (config, _) = crate::config::load_text("test", text, &place).unwrap();
        let ports: Vec<u16> = addresses(&config).iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [2049, 3260, 3261]);
    }
}

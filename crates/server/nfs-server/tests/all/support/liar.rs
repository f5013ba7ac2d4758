//! A proxy before a server: it passes calls on as they are, and changes replies.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A call: program, version and procedure, and its arguments.
pub type Called = ((u32, u32, u32), Vec<u8>);
/// Changes the record of a reply; it also gets the call.
pub type Lie = Arc<dyn Fn(&Called, &mut Vec<u8>) + Send + Sync>;

/// The next record, its fragments put together.
fn record(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).ok()?;
        let mark = u32::from_be_bytes(mark);
        let at = whole.len();
        whole.resize(at + (mark & !rpc::record::LAST) as usize, 0);
        stream.read_exact(&mut whole[at..]).ok()?;
        if mark & rpc::record::LAST != 0 {
            return Some(whole);
        }
    }
}

/// Program, version, procedure and arguments of a call; zeros if the header cannot be read.
fn called(call: &[u8]) -> Called {
    let mut from = rpc::xdr::Reader::new(call);
    match rpc::message::Call::read(&mut from) {
        Ok(header) => ((header.program, header.version, header.procedure), from.remaining().to_vec()),
        Err(_) => ((0, 0, 0), Vec::new()),
    }
}

/// A proxy before `server` whose replies `lie` changes: its port. It lives as long as the test.
pub fn lying(server: SocketAddr, lie: Lie) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let lie = lie.clone();
            thread::spawn(move || between(client, server, &lie));
        }
    });
    port
}

fn between(mut client: TcpStream, server: SocketAddr, lie: &Lie) {
    let Ok(mut server) = TcpStream::connect(server) else { return };
    let (Ok(mut calls), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let pending: Arc<Mutex<HashMap<[u8; 4], Called>>> = Arc::default();
    let noted = pending.clone();
    thread::spawn(move || {
        while let Some(call) = record(&mut calls) {
            if let Some(xid) = call.first_chunk() {
                noted.lock().expect("no panic").insert(*xid, called(&call));
            }
            if to_server.write_all(&super::fragment(&call, true)).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(std::net::Shutdown::Both);
    });
    while let Some(mut reply) = record(&mut server) {
        let call = reply.first_chunk().and_then(|xid| pending.lock().expect("no panic").get(xid).cloned());
        if let Some(call) = call {
            lie(&call, &mut reply);
        }
        if client.write_all(&super::fragment(&reply, true)).is_err() {
            break;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
}

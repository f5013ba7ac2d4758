//! The portmapper (RFC 1833): every program is at the port that the client has come to. So a client
//! needs one port alone, whichever it asks.

use nfs::{mount, v3};
use rpc::bind::{self, Binding, Mapping, TCP, Text};
use rpc::xdr::{Chained, Reader};

use crate::call::{Accepted, Refused};
use crate::client::Client;
use crate::reply::Reply;

/// Programs and their versions.
const SERVED: [(u32, u32); 5] = [
    (bind::PROGRAM, bind::v2::VERSION),
    (bind::PROGRAM, bind::v3::VERSION),
    (bind::PROGRAM, bind::v4::VERSION),
    (v3::PROGRAM, v3::VERSION),
    (mount::PROGRAM, mount::VERSION),
];

/// Executes a call. Clients cannot register programs, and the server makes no calls for others:
/// portmappers are misused through CALLIT.
pub(crate) fn call(
    client: &Client,
    version: u32,
    call: &Accepted,
    record: &runtime::Buf,
) -> Result<Option<Reply>, Refused> {
    let bytes = record.as_slice().unwrap_or_default();
    let body = bytes.get(call.body..).unwrap_or_default();
    let from = &mut Reader::new(body);
    // A portal of port 111 is the portmapper's alone: it tells the port of NFS.
    let nfs = client.nfs_port();
    let own = client.local.port();
    let port = |program: u32| if program == bind::PROGRAM { own } else { nfs };
    let address = |program: u32| {
        let mut local = client.local;
        local.set_ip(local.ip().to_canonical());
        local.set_port(port(program));
        bind::universal_address(local)
    };
    let netid = if client.local.ip().to_canonical().is_ipv4() { "tcp" } else { "tcp6" };
    let known = |program: u32, version: Option<u32>| {
        SERVED.iter().any(|one| one.0 == program && version.is_none_or(|version| one.1 == version))
    };
    if version == bind::v2::VERSION {
        use bind::v2::{Arguments, Procedure, Results};
        let procedure = Procedure::from_code(call.procedure).ok_or(Refused::NoProcedure)?;
        let arguments = Arguments::read(procedure, from)?;
        let mappings = Chained::of(SERVED.iter().map(|(program, version)| Mapping {
            program: *program,
            version: *version,
            protocol: TCP,
            port: port(*program).into(),
        }));
        let results = match arguments {
            Arguments::Null(()) => Results::Null(()),
            Arguments::Set(_) => Results::Set(false),
            Arguments::Unset(_) => Results::Unset(false),
            // A version that is not there is answered with the program's port all the same.
            Arguments::GetPort(asked) => {
                let there = asked.protocol == TCP && known(asked.program, None);
                Results::GetPort(if there { port(asked.program).into() } else { 0 })
            }
            Arguments::Dump(()) => Results::Dump(mappings.chain()),
            Arguments::CallIt(_) => return Ok(None),
        };
        return Ok(Some(Reply::with(call.xid, |to| results.write(to))));
    }
    let addresses: Vec<String> = SERVED.iter().map(|(program, _)| address(*program)).collect();
    let text = |text: &'static str| Text::new(text.as_bytes()).unwrap_or(Text::EMPTY);
    let bindings = Chained::of(SERVED.iter().zip(&addresses).map(|((program, version), address)| Binding {
        program: *program,
        version: *version,
        netid: text(netid),
        address: Text::new(address.as_bytes()).unwrap_or(Text::EMPTY),
        owner: text("superuser"),
    }));
    let found = |asked: &Binding<'_>, version: Option<u32>| match known(asked.program, version) {
        true => address(asked.program),
        false => String::new(),
    };
    /// The procedures common to versions 3 and 4.
    macro_rules! common {
        ($version:ident, |$arguments:ident| $($more:tt)*) => {{
            use bind::$version::{Arguments, Procedure, Results};
            let procedure = Procedure::from_code(call.procedure).ok_or(Refused::NoProcedure)?;
            let $arguments = Arguments::read(procedure, from)?;
            let mut answer = String::new();
            let results = match &$arguments {
                Arguments::Null(()) => Results::Null(()),
                Arguments::Set(_) => Results::Set(false),
                Arguments::Unset(_) => Results::Unset(false),
                Arguments::GetAddr(asked) => {
                    answer = found(asked, None);
                    Results::GetAddr(Text::new(answer.as_bytes()).unwrap_or(Text::EMPTY))
                }
                Arguments::Dump(()) => Results::Dump(bindings.chain()),
                Arguments::GetTime(()) => return Err(Refused::NoProcedure),
                $($more)*
                _ => return Err(Refused::NoProcedure),
            };
            let reply = Reply::with(call.xid, |to| results.write(to));
            drop(answer);
            reply
        }};
    }
    let reply = match version {
        bind::v3::VERSION => common!(v3, |arguments|),
        _ => {
            let mut exact = String::new();
            let reply = common!(v4, |arguments| Arguments::GetVersAddr(asked) => {
                exact = found(asked, Some(asked.version));
                Results::GetVersAddr(Text::new(exact.as_bytes()).unwrap_or(Text::EMPTY))
            });
            drop(exact);
            reply
        }
    };
    Ok(Some(reply))
}

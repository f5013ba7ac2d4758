//! The daemon's HTTP server: its address, its start before the sandbox closes, and its contents.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use admin_http::exposition::Format;
use admin_http::{Admitted, Answer, Head, Http, Report, Source, Tls};

use super::picture::Picture;
use super::process::Process;
use super::sums::Sums;
use crate::api::{self, Api};
use crate::config;
use crate::control::daemon::Daemon;
use crate::control::status;
use crate::dashboard::{self, Dashboard};
use crate::events;
use crate::exit::Exit;

/// Time for a core to answer.
const PATIENCE: Duration = Duration::from_millis(250);
/// Time for an address to become free: after a process was killed, the kernel closes its listening
/// socket a little later.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(3);

/// A listening socket whose clients are not answered yet; none if there are only those of the
/// control socket.
pub struct Listener {
    socket: Option<(SocketAddr, TcpListener)>,
    tls: Option<Tls>,
}

impl Listener {
    /// Listens where `http` says, if it is there: on the socket of the daemon that is replaced, if
    /// that listens there.
    ///
    /// # Errors
    /// The address cannot be bound, or the certificate cannot be used.
    pub fn bind(http: Option<&config::Http>, inherited: Option<(SocketAddr, OwnedFd)>) -> io::Result<Self> {
        let Some(http) = http else { return Ok(Self { socket: None, tls: None }) };
        let asked = http.listen;
        let tls = http.certificate.as_ref().zip(http.key.as_ref());
        let tls = tls.map(|(certificate, key)| {
            crate::secret::forbid_core_dumps();
            Tls::read(certificate, key)
        });
        let tls = tls.transpose().map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("HTTP cannot speak TLS: {error}"))
        })?;
        if let Some((_, socket)) = inherited.filter(|(of, _)| *of == asked) {
            return Ok(Self { socket: Some((asked, socket.into())), tls });
        }
        let deadline = Instant::now() + ADDRESS_PATIENCE;
        loop {
            match admin_http::listen(asked) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(socket) => return Ok(Self { socket: Some((asked, socket)), tls }),
                Err(error) => {
                    let what = format!("HTTP cannot listen on {asked}: {error}");
                    return Err(io::Error::new(error.kind(), what));
                }
            }
        }
    }

    /// Starts the thread. Comes after Landlock, which threads inherit, and before system calls are
    /// filtered: the thread makes itself a batch job.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(self) -> io::Result<Server> {
        let handed_over = self.socket.as_ref().map(|(asked, socket)| {
            Ok::<_, io::Error>((*asked, socket.local_addr()?, OwnedFd::from(socket.try_clone()?)))
        });
        let http = Http::start(self.socket.map(|(_, socket)| socket), self.tls)?;
        Ok(Server { handed_over: handed_over.transpose()?, http })
    }
}

/// The server. It ends when it is dropped.
pub struct Server {
    /// The configured address, the one that it became, and its socket.
    handed_over: Option<(SocketAddr, SocketAddr, OwnedFd)>,
    http: Http<Shown>,
}

impl Server {
    /// Answers clients from now on.
    pub fn serve(self, daemon: &Arc<Daemon>) -> Http<impl Source> {
        if let Some((asked, address, socket)) = self.handed_over {
            tracing::info!(%address, "listening for HTTP");
            // Fails if already set: a daemon has one HTTP address.
            let _ = daemon.http.set((asked, socket));
        }
        // So does this.
        let _ = daemon.door.set(self.http.door());
        let http = daemon.running().config.http.clone().unwrap_or_default();
        let has_pages = http.dashboard;
        let api = Arc::new(Api::new(daemon.clone(), http));
        let dashboard = has_pages.then(|| Dashboard::new(daemon.clone(), api.clone()));
        events::begin(self.http.teller());
        self.http.serve(Arc::new(Shown { daemon: daemon.clone(), api, dashboard, sums: Mutex::default() }));
        self.http
    }
}

/// The daemon as a source of metrics, its API, and its dashboard if it is on.
struct Shown {
    daemon: Arc<Daemon>,
    api: Arc<Api>,
    dashboard: Option<Dashboard>,
    /// Sums up to the last look.
    sums: Mutex<Sums>,
}

/// A request that may be executed.
enum Call {
    Api(api::Call),
    Page(dashboard::Call),
}

impl Source for Shown {
    type Picture = Picture;
    type Call = Call;

    fn look(&self) -> Picture {
        let began = Instant::now();
        let status = status::status(&self.daemon, PATIENCE);
        let totals = self.sums.lock().unwrap_or_else(PoisonError::into_inner).at(&status);
        Picture {
            status,
            totals,
            process: Process::now(),
            ends: self.daemon.is_replaced(),
            took_s: began.elapsed().as_secs_f64(),
        }
    }

    fn metrics(&self, picture: &Picture, format: Format) -> String {
        picture.text(format).finish()
    }

    fn health(&self, picture: &Picture) -> Report {
        let silent = picture.status.cores.iter().filter(|core| core.is_none()).count();
        let mut text = picture.status.health.check();
        if silent > 0 {
            text.insert_str(0, &format!("CRITICAL: {silent} cores do not answer\n"));
        }
        Report { well: silent == 0 && picture.status.health.exit() != Exit::CheckCritical, text }
    }

    fn readiness(&self, picture: &Picture) -> Report {
        let silent = picture.status.cores.iter().all(Option::is_none);
        let text = match (picture.ends, silent) {
            (true, _) => "another daemon has taken over\n",
            (_, true) => "no core answers\n",
            _ => "ready\n",
        };
        Report { well: !picture.ends && !silent, text: text.to_owned() }
    }

    fn may_scrape(&self, head: &Head) -> Result<(), Answer> {
        self.api.may_scrape(head)
    }

    fn admit(&self, head: Head) -> Result<Admitted<Call>, Answer> {
        match &self.dashboard {
            _ if head.path.starts_with("/api/") => Ok(match self.api.admit(head)? {
                Admitted::Call(call, most) => Admitted::Call(Call::Api(call), most),
                Admitted::Events(may) => Admitted::Events(may),
            }),
            Some(dashboard) => {
                dashboard.admit(head).map(|(call, most)| Admitted::Call(Call::Page(call), most))
            }
            None => {
                let fields = vec![("content-type", "text/plain; charset=utf-8".to_owned())];
                let body = "there are /metrics, /healthz, /readyz and /api/v1\n".to_owned();
                Err(Answer { status: 404, fields, body })
            }
        }
    }

    fn execute(&self, call: Call, body: &[u8]) -> Answer {
        match (call, &self.dashboard) {
            (Call::Api(call), _) => self.api.execute(call, body),
            (Call::Page(call), Some(dashboard)) => dashboard.execute(call, body),
            // No page is admitted then.
            (Call::Page(_), None) => Self::refusal(404, "the dashboard is off"),
        }
    }

    fn refusal(status: u16, what: &str) -> Answer {
        api::problem(status, what)
    }
}

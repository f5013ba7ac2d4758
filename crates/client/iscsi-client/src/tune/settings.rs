//! Settings of a session as text: `key=value&key=value`, after a URL's `?`, and as `stag tune`
//! prints them. Each one overrides [`Options`].

use std::fmt;
use std::str::FromStr;

use super::Tune;
use crate::options::Options;

/// The settings of a URL, or of `stag tune`. `None` leaves one to [`Options`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// `tune=auto|off`
    pub tune: Option<Tune>,
    /// `connections=1..64`: connections of the session (MC/S).
    pub connections: Option<u16>,
    /// `max-burst=SIZE`: MaxBurstLength, 512 to 2²⁴−1 bytes.
    pub max_burst: Option<u32>,
    /// `first-burst=SIZE`: FirstBurstLength, 512 to 2²⁴−1 bytes.
    pub first_burst: Option<u32>,
    /// `recv-segment=SIZE`: MaxRecvDataSegmentLength to declare, 512 to 2²⁴−1 bytes.
    pub recv_segment: Option<u32>,
    /// `initial-r2t=yes|no`
    pub initial_r2t: Option<bool>,
    /// `immediate-data=yes|no`
    pub immediate_data: Option<bool>,
    /// `outstanding-r2t=1..65535`: MaxOutstandingR2T.
    pub outstanding_r2t: Option<u16>,
    /// `queue-depth=1..32768`: outstanding commands of the session. `stag bench` has its own
    /// `--depth`.
    pub queue_depth: Option<u16>,
    /// `reads=1..16383`: over iSER, maximum outstanding RDMA Reads of the target (IRD).
    pub reads: Option<u16>,
    /// `fpdu=256..65544`: iSER on software iWARP, the longest FPDU sent, bytes.
    pub fpdu: Option<u32>,
    /// `unsolicited=SIZE`: over iSER, the longest write whose data is sent with its command, bytes.
    pub unsolicited: Option<u32>,
    /// `send-buffer=SIZE`: SO_SNDBUF, 4 KiB to 1 GiB.
    pub send_buffer: Option<u32>,
    /// `recv-buffer=SIZE`: SO_RCVBUF, 4 KiB to 1 GiB.
    pub recv_buffer: Option<u32>,
    /// `congestion=NAME`: TCP's congestion control, by its name in the kernel.
    pub congestion: Option<String>,
}

/// Why a text is not a list of settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The setting is unknown.
    #[error(
        "`{0}` is no setting: tune, connections, max-burst, first-burst, recv-segment, initial-r2t, immediate-data, \
         outstanding-r2t, queue-depth, reads, fpdu, unsolicited, send-buffer, recv-buffer and congestion are"
    )]
    Unknown(String),
    /// The setting has no `=`.
    #[error("`{0}` has no value: write {0}=…")]
    NoValue(String),
    /// The setting is repeated.
    #[error("`{0}` is said twice")]
    Twice(String),
    /// The value is invalid.
    #[error("{key}={value}: {wanted}")]
    Value {
        /// Name of the setting.
        key: String,
        /// The rejected value.
        value: String,
        /// The valid values.
        wanted: String,
    },
}

const DATA: (u32, u32) = (512, 0xff_ffff);
const BUFFER: (u32, u32) = (4096, 1 << 30);

impl Settings {
    /// Whether no setting is present.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// `options`, overridden by these settings.
    pub fn applied(&self, mut options: Options) -> Options {
        fn put<T>(place: &mut T, said: Option<T>) {
            if let Some(said) = said {
                *place = said;
            }
        }
        put(&mut options.tune, self.tune);
        put(&mut options.connections, self.connections);
        put(&mut options.max_burst_length, self.max_burst);
        put(&mut options.first_burst_length, self.first_burst);
        put(&mut options.max_recv_data_segment_length, self.recv_segment);
        put(&mut options.initial_r2t, self.initial_r2t);
        put(&mut options.immediate_data, self.immediate_data);
        put(&mut options.max_outstanding_r2t, self.outstanding_r2t);
        put(&mut options.queue_depth, self.queue_depth.map(usize::from));
        put(&mut options.iser_reads, self.reads);
        put(&mut options.iser_fpdu, self.fpdu.map(|bytes| bytes as usize));
        put(&mut options.iser_unsolicited, self.unsolicited);
        put(&mut options.path.send_buffer, self.send_buffer.map(|bytes| Some(bytes as usize)));
        put(&mut options.path.recv_buffer, self.recv_buffer.map(|bytes| Some(bytes as usize)));
        put(&mut options.path.congestion, self.congestion.clone().map(Some));
        // An unsolicited burst may not exceed the maximum (RFC 7143 §13.14).
        options.first_burst_length = options.first_burst_length.min(options.max_burst_length);
        options
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let wrong = |wanted: String| SettingError::Value { key: key.into(), value: value.into(), wanted };
        let size = |(least, most): (u32, u32)| {
            let number = bytes(value).and_then(|n| u32::try_from(n).ok());
            number.filter(|n| (least..=most).contains(n)).ok_or_else(|| {
                wrong(format!("write a size from {least} to {most} bytes, such as 256K or 1M"))
            })
        };
        let count = |most: u16| {
            let number = value.parse::<u16>().ok().filter(|n| (1..=most).contains(n));
            number.ok_or_else(|| wrong(format!("write a number from 1 to {most}")))
        };
        let yes = || match value.to_ascii_lowercase().as_str() {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(wrong("write yes or no".into())),
        };
        fn once<T>(place: &mut Option<T>, key: &str, said: T) -> Result<(), SettingError> {
            match place.replace(said) {
                None => Ok(()),
                Some(_) => Err(SettingError::Twice(key.into())),
            }
        }
        match key {
            "tune" => {
                let tune = match value {
                    "auto" => Tune::Auto,
                    "off" => Tune::Off,
                    _ => return Err(wrong("write auto or off".into())),
                };
                once(&mut self.tune, key, tune)
            }
            "connections" => once(&mut self.connections, key, count(64)?),
            "max-burst" => once(&mut self.max_burst, key, size(DATA)?),
            "first-burst" => once(&mut self.first_burst, key, size(DATA)?),
            "recv-segment" => once(&mut self.recv_segment, key, size(DATA)?),
            "initial-r2t" => once(&mut self.initial_r2t, key, yes()?),
            "immediate-data" => once(&mut self.immediate_data, key, yes()?),
            "outstanding-r2t" => once(&mut self.outstanding_r2t, key, count(u16::MAX)?),
            "queue-depth" => once(&mut self.queue_depth, key, count(32_768)?),
            "reads" => once(&mut self.reads, key, count(16_383)?),
            "fpdu" => once(&mut self.fpdu, key, size((256, 65_544))?),
            "unsolicited" => once(&mut self.unsolicited, key, size((0, 0xff_ffff))?),
            "send-buffer" => once(&mut self.send_buffer, key, size(BUFFER)?),
            "recv-buffer" => once(&mut self.recv_buffer, key, size(BUFFER)?),
            "congestion" => {
                // TCP_CA_NAME_MAX, including its final zero.
                let fits = (1..16).contains(&value.len())
                    && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
                if !fits {
                    return Err(wrong("write its name in the kernel, such as bbr or cubic".into()));
                }
                once(&mut self.congestion, key, value.to_owned())
            }
            _ => Err(SettingError::Unknown(key.to_owned())),
        }
    }
}

impl FromStr for Settings {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        for word in text.split('&').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').ok_or_else(|| SettingError::NoValue(word.to_owned()))?;
            settings.set(key, value)?;
        }
        Ok(settings)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = Vec::new();
        let yes = |yes: bool| if yes { "yes" } else { "no" };
        if let Some(tune) = self.tune {
            words.push(format!("tune={}", if tune == Tune::Auto { "auto" } else { "off" }));
        }
        let counts = [("connections", self.connections)];
        words.extend(counts.into_iter().filter_map(|(key, n)| Some(format!("{key}={}", n?))));
        let sizes = [
            ("max-burst", self.max_burst),
            ("first-burst", self.first_burst),
            ("recv-segment", self.recv_segment),
        ];
        words.extend(sizes.into_iter().filter_map(|(key, n)| Some(format!("{key}={}", short(n?)))));
        let choices = [("initial-r2t", self.initial_r2t), ("immediate-data", self.immediate_data)];
        words.extend(choices.into_iter().filter_map(|(key, is)| Some(format!("{key}={}", yes(is?)))));
        let counts = [
            ("outstanding-r2t", self.outstanding_r2t),
            ("queue-depth", self.queue_depth),
            ("reads", self.reads),
        ];
        words.extend(counts.into_iter().filter_map(|(key, n)| Some(format!("{key}={}", n?))));
        let sizes = [
            ("fpdu", self.fpdu),
            ("unsolicited", self.unsolicited),
            ("send-buffer", self.send_buffer),
            ("recv-buffer", self.recv_buffer),
        ];
        words.extend(sizes.into_iter().filter_map(|(key, n)| Some(format!("{key}={}", short(n?)))));
        words.extend(self.congestion.iter().map(|name| format!("congestion={name}")));
        f.write_str(&words.join("&"))
    }
}

/// A size for display: a whole number of MiB or KiB if possible.
pub(crate) fn short(bytes: u32) -> String {
    match bytes {
        0 => "0".to_owned(),
        n if n % (1 << 20) == 0 => format!("{}M", n >> 20),
        n if n % (1 << 10) == 0 => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

/// Reads a size: bytes, or binary K, M, G.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = all_digits.then(|| digits.parse().ok()).flatten()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "tune=auto&connections=4&max-burst=1M&first-burst=256K&recv-segment=262144&initial-r2t=no&\
                       immediate-data=yes&outstanding-r2t=8&queue-depth=64&reads=32&fpdu=65536&unsolicited=0&\
                       send-buffer=8M&recv-buffer=8M&congestion=bbr";

    #[test]
    fn what_is_printed_is_read_as_the_same() {
        let settings: Settings = ALL.parse().unwrap();
        assert_eq!(settings.to_string().parse::<Settings>().unwrap(), settings);
        assert_eq!(settings.recv_segment, Some(262_144));
        assert_eq!("".parse::<Settings>().unwrap(), Settings::default());
    }

    #[test]
    fn what_is_said_goes_before_the_options_and_the_rest_is_theirs() {
        let options = "connections=3&max-burst=64K".parse::<Settings>().unwrap().applied(Options::default());
        assert_eq!((options.connections, options.max_burst_length), (3, 65_536));
        assert_eq!(options.first_burst_length, 65_536, "a first burst is no longer than a burst");
        assert_eq!(options.iser_reads, Options::default().iser_reads);
    }

    #[test]
    fn faults_are_named() {
        for (text, wanted) in [
            ("nothing=1", "is no setting"),
            ("connections", "write connections="),
            ("connections=1&connections=2", "said twice"),
            ("connections=0", "from 1 to 64"),
            ("connections=65", "from 1 to 64"),
            ("max-burst=16M", "512 to 16777215"),
            ("first-burst=-1", "512 to"),
            ("first-burst=99999999999999999999G", "512 to"),
            ("initial-r2t=maybe", "yes or no"),
            ("congestion=", "name in the kernel"),
            ("congestion=a/../b", "name in the kernel"),
            ("tune=perhaps", "auto or off"),
        ] {
            let error = text.parse::<Settings>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}

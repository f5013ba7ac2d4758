//! URIs: what they name, and what is refused.

use super::*;

fn tcp(host: &str, port: u16, export: &str) -> Uri {
    Uri { address: Address::Tcp { host: host.into(), port }, export: export.into() }
}

fn unix(path: &str, export: &str) -> Uri {
    Uri { address: Address::Unix(path.into()), export: export.into() }
}

#[test]
fn the_documents_examples_and_others() {
    for (text, uri, shown) in [
        ("nbd://example.com/disk", tcp("example.com", 10809, "disk"), "nbd://example.com/disk"),
        ("nbd+unix:///disk?socket=sock", unix("sock", "disk"), "nbd+unix:///disk?socket=sock"),
        ("nbd://example.com/", tcp("example.com", 10809, ""), "nbd://example.com/"),
        ("nbd://example.com", tcp("example.com", 10809, ""), "nbd://example.com/"),
        ("nbd://example.com//disk", tcp("example.com", 10809, "/disk"), "nbd://example.com//disk"),
        (
            "nbd://example.com/hello%20world",
            tcp("example.com", 10809, "hello world"),
            "nbd://example.com/hello%20world",
        ),
        ("nbd://10.0.0.1:10809/a,b", tcp("10.0.0.1", 10809, "a,b"), "nbd://10.0.0.1/a%2Cb"),
        ("nbd://h:99/%c3%a9", tcp("h", 99, "é"), "nbd://h:99/%C3%A9"),
        ("nbd://h:/x", tcp("h", 10809, "x"), "nbd://h/x"),
        ("nbd://[::1]:77/x", tcp("::1", 77, "x"), "nbd://[::1]:77/x"),
        ("nbd://[fe80::1]", tcp("fe80::1", 10809, ""), "nbd://[fe80::1]/"),
        ("nbd+unix:///?socket=/run/a%20b", unix("/run/a b", ""), "nbd+unix:///?socket=/run/a%20b"),
        ("nbd+unix://?socket=/s&", unix("/s", ""), "nbd+unix:///?socket=/s"),
    ] {
        assert!(is_uri(text));
        assert_eq!(text.parse(), Ok(uri.clone()), "{text}");
        assert_eq!(uri.to_string(), shown);
        assert_eq!(shown.parse(), Ok(uri));
    }
}

#[test]
fn what_names_no_export_is_refused() {
    let text = str::to_owned;
    for (uri, expected) in [
        ("disk", UriError::Scheme),
        ("http://h/x", UriError::Scheme),
        ("nbds://h/x", UriError::Tls),
        ("nbds+unix:///x?socket=/s", UriError::Tls),
        ("nbd://user@h/x", UriError::Tls),
        ("nbd://h/x?tls-type=psk", UriError::Tls),
        ("nbd:///x", UriError::NoHost),
        ("nbd://:10809/x", UriError::NoHost),
        ("nbd+unix:///x", UriError::NoSocket),
        ("nbd+unix:///x?socket=", UriError::NoSocket),
        ("nbd+unix://h/x?socket=/s", UriError::Host),
        ("nbd+unix:///x?socket=/s&socket=/t", UriError::Parameter(text("socket"))),
        ("nbd://h/x?socket=/s", UriError::Parameter(text("socket"))),
        ("nbd://h/x?a=b", UriError::Parameter(text("a"))),
        ("nbd://h:0/x", UriError::Port(text("0"))),
        ("nbd://h:+1/x", UriError::Port(text("+1"))),
        ("nbd://h:65536/x", UriError::Port(text("65536"))),
        ("nbd://[::1/x", UriError::BadHost(text("[::1"))),
        ("nbd://[h]/x", UriError::BadHost(text("[h]"))),
        ("nbd://[::1]9/x", UriError::BadHost(text("[::1]9"))),
        ("nbd://a%2Fb/x", UriError::BadHost(text("a%2Fb"))),
        ("nbd://h/%2", UriError::Encoding(text("%2"))),
        ("nbd://h/%+1", UriError::Encoding(text("%+1"))),
        ("nbd://h/%ff", UriError::Encoding(text("%ff"))),
        ("nbd://h/%00", UriError::Encoding(text("%00"))),
        ("nbd+unix:///?socket=%00/abstract", UriError::Encoding(text("%00/abstract"))),
        ("nbd://h/x#y", UriError::Encoding(text("x#y"))),
        ("nbd://h/a b", UriError::Encoding(text("a b"))),
    ] {
        assert_eq!(uri.parse::<Uri>(), Err(expected), "{uri}");
    }
    assert_eq!(format!("nbd://h/{}", "x".repeat(4097)).parse::<Uri>(), Err(UriError::TooLong));
}

proptest! {
    #[test]
    fn what_is_shown_is_what_is_read(
        host in "[a-z0-9._-]{1,9}", port in 1u16.., export in "[^\0]{0,20}", path in "[^\0]{1,20}",
    ) {
        for uri in [tcp(&host, port, &export), unix(&path, &export)] {
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(nbd|nbd\\+unix)://[^\0]{0,30}") {
        if let Ok(uri) = text.parse::<Uri>() {
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        }
    }
}

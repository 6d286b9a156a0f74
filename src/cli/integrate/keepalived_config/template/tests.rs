//! The values of a configuration of keepalived, and its text.

use super::*;

fn template() -> Template {
    let word = |text| PlainWord::new("a word", text).unwrap();
    Template {
        datastore: word("data"),
        node: word("a"),
        address: "192.0.2.10/24".parse().unwrap(),
        interface: "eth0".parse().unwrap(),
        router_id: 51,
        source: "192.0.2.1".parse().unwrap(),
        peer: "192.0.2.2".parse().unwrap(),
        program: word("/usr/local/bin/lockstep"),
        config: word("/etc/lockstep/node.toml"),
        notify: None,
        ganesha: None,
        timing: Timing::DEFAULT,
    }
}

#[test]
fn an_address_needs_a_prefix_and_must_be_one_of_a_host() {
    for text in [
        "192.0.2.10/24",
        "10.0.0.0/31",
        "10.0.0.1/32",
        "2001:db8::10/64",
    ] {
        assert!(text.parse::<ClusterAddress>().is_ok(), "{text}");
    }
    let not_addresses = [
        "",
        "192.0.2.10",
        "192.0.2.10/0",
        "192.0.2.10/33",
        "192.0.2.10/+4",
        "192.0.2.10/",
        "host/24",
        "2001:db8::10/129",
    ];
    for text in not_addresses {
        let refused = text.parse::<ClusterAddress>().unwrap_err();
        assert_eq!(refused, KeepalivedError::NotAddress(text.to_owned()));
    }
    for (text, why) in [
        ("0.0.0.0/8", "the address of no host"),
        ("127.0.0.1/8", "a loopback address"),
        ("224.0.0.18/24", "a multicast address"),
        ("192.0.2.0/24", "the address of a network"),
        ("192.0.2.255/24", "the broadcast address of a network"),
        ("::1/128", "a loopback address"),
        ("ff02::12/64", "a multicast address"),
    ] {
        let refused = text.parse::<ClusterAddress>().unwrap_err().to_string();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

#[test]
fn a_name_of_an_interface_is_one_that_the_kernel_takes() {
    for text in ["eth0", "enp3s0f1", "br-lan.12", "123456789012345"] {
        assert!(text.parse::<InterfaceName>().is_ok(), "{text}");
    }
    for text in [
        "",
        "1234567890123456",
        "eth 0",
        "eth/0",
        "eth0:1",
        "..",
        "a\"b",
        "a#b",
        "é",
    ] {
        assert!(text.parse::<InterfaceName>().is_err(), "{text}");
    }
}

#[test]
fn a_word_that_keepalived_would_read_otherwise_is_refused() {
    for word in [
        "", "a b", "a\"b", "a#b", "a!b", "a$b", "a\\b", "a{b", "a\nb", "a'b", "a~b",
    ] {
        assert!(PlainWord::new("a word", word).is_err(), "{word:?}");
    }
}

#[test]
fn addresses_that_do_not_fit_together_are_refused() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(template().check(), Ok(()));
    let cases = [
        (
            "192.0.2.1",
            "192.0.2.1",
            KeepalivedError::SameServer(ip("192.0.2.1")),
        ),
        (
            "192.0.2.10",
            "192.0.2.2",
            KeepalivedError::NotFree(ip("192.0.2.10")),
        ),
        (
            "192.0.2.1",
            "192.0.2.10",
            KeepalivedError::NotFree(ip("192.0.2.10")),
        ),
        (
            "192.0.2.1",
            "2001:db8::2",
            KeepalivedError::Mixed(ip("192.0.2.10"), ip("2001:db8::2")),
        ),
    ];
    for (source, peer, refused) in cases {
        let template = Template {
            source: ip(source),
            peer: ip(peer),
            ..template()
        };
        assert_eq!(template.check(), Err(refused));
    }
}

#[test]
fn a_loopback_address_of_a_server_is_refused_with_the_option_for_another_one() {
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    let own = Template {
        source: loopback,
        ..template()
    };
    let of_other = Template {
        peer: loopback,
        ..template()
    };
    for (template, server, option) in [
        (own, "this server", "--source"),
        (of_other, "the other server", "--peer"),
    ] {
        let error = template.check().unwrap_err().to_string();
        let cause = format!("the address of {server} is 127.0.0.1, a loopback address");
        assert!(error.contains(&cause), "{error}");
        assert!(error.ends_with(&format!("with {option}")), "{error}");
    }
    let refused = "127.0.0.1/8".parse::<ClusterAddress>().unwrap_err();
    let cause = "127.0.0.1 is a loopback address, so it cannot be the cluster address";
    assert!(refused.to_string().starts_with(cause), "{refused}");
}

#[test]
fn the_text_has_each_value_at_its_place() {
    let text = template().text();
    for line in [
        "script \"/usr/local/bin/lockstep health data --config /etc/lockstep/node.toml --hold-ms 800 --limit-ms 1000 --address 192.0.2.10\"",
        "    interface eth0\n",
        "    virtual_router_id 51\n",
        "    unicast_src_ip 192.0.2.1\n",
        "        192.0.2.2\n",
        "        192.0.2.10/24\n",
        "    advert_int 0.20\n",
        "    timeout 2\n",
        "src 192.0.2.10\"\n",
        "    notify \"/usr/bin/logger --tag lockstep data: cluster address 192.0.2.10:\"\n",
    ] {
        assert!(text.contains(line), "{line:?} is missing in\n{text}");
    }
    assert!(!text.contains("weight"), "{text}");
    let own = Template {
        notify: Some(PlainWord::new("a word", "/usr/local/sbin/on-move").unwrap()),
        ..template()
    };
    assert!(
        own.text()
            .contains("    notify \"/usr/local/sbin/on-move\"\n")
    );
    assert!(!own.text().contains("logger"));
}

#[test]
fn ganesha_starts_anew_where_a_node_begins_to_serve_and_stops_where_it_does_not() {
    let plain = template().text();
    assert!(!plain.contains("ganesha"), "{plain}");
    let own = PlainWord::new("a word", "/usr/local/sbin/nfs").unwrap();
    for (ganesha, rest) in [
        (Ganesha::Unit, ""),
        (Ganesha::Program(own), " --program /usr/local/sbin/nfs"),
    ] {
        let template = Template {
            ganesha: Some(ganesha),
            ..template()
        };
        let text = template.text();
        assert!(text.contains(" --address 192.0.2.10 --nfs\"\n"), "{text}");
        for (hook, event) in [("notify_backup", "serves"), ("notify_fault", "lost")] {
            let line = format!(
                "    {hook} \"/usr/local/bin/lockstep ganesha-follow data {event} --address 192.0.2.10 \
                 --config /etc/lockstep/node.toml{rest}\"\n"
            );
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }
}

#[test]
fn an_ipv6_address_is_written_as_each_program_wants_it() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let template = Template {
        address: "2001:db8::10/64".parse().unwrap(),
        source: ip("2001:db8::1"),
        peer: ip("2001:db8::2"),
        ..template()
    };
    assert_eq!(template.check(), Ok(()));
    let text = template.text();
    for line in [
        "        2001:db8::10/64\n",
        "        2001:db8::2\n",
        "src [2001:db8::10]\"\n",
    ] {
        assert!(text.contains(line), "{line:?} is missing in\n{text}");
    }
}

/// The head of `health` says that an answer younger than the hold and half a second is told at once.
#[test]
fn a_node_that_has_ceased_to_serve_loses_the_address_before_the_other_one_takes_it() {
    let timing = Timing::DEFAULT;
    let interval = Duration::from_secs(timing.interval_s.into());
    let hold = Duration::from_millis(timing.hold_ms.into());
    let pause_between_runs = interval.checked_sub(hold).unwrap();
    let poll = Duration::from_millis(50);
    let spare = Duration::from_millis(200);
    assert!(pause_between_runs + poll + spare < timing.takeover());
}

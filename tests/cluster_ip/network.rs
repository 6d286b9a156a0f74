//! A network of namespaces: two servers, a client and a witness, each with one interface `eth0`, at a bridge whose links can
//! be cut.
//!
//! The kernel ends the processes in a namespace with the test. All addresses are the same in each test: no two networks see each other.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Output;

use lockstep_testbed::namespace::NetNamespace;

/// The cluster address.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

/// A machine at the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    A,
    B,
    Client,
    Witness,
}

impl Host {
    const ALL: [Self; 4] = [Self::A, Self::B, Self::Client, Self::Witness];

    /// The port of the bridge.
    const fn port(self) -> &'static str {
        match self {
            Self::A => "port-a",
            Self::B => "port-b",
            Self::Client => "port-client",
            Self::Witness => "port-witness",
        }
    }

    /// The address.
    pub const fn ip(self) -> Ipv4Addr {
        match self {
            Self::A => Ipv4Addr::new(192, 0, 2, 1),
            Self::B => Ipv4Addr::new(192, 0, 2, 2),
            Self::Client => Ipv4Addr::new(192, 0, 2, 100),
            Self::Witness => Ipv4Addr::new(192, 0, 2, 3),
        }
    }
}

/// A place for a virtual machine beside the client, behind the same port of the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestPort {
    First,
    Second,
}

impl GuestPort {
    /// The interface for the virtual machine.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "guest-1",
            Self::Second => "guest-2",
        }
    }

    /// The address of the virtual machine.
    pub const fn ip(self) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, 101 + self as u8)
    }

    /// The address of its interface.
    pub const fn hardware_address(self) -> &'static str {
        match self {
            Self::First => "52:54:00:00:00:01",
            Self::Second => "52:54:00:00:00:02",
        }
    }
}

/// Runs the words of a line as a command in a namespace, to its end and with success.
fn run(namespace: &NetNamespace, line: &str) -> Output {
    let output = namespace.command().args(line.split(' ')).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    output
}

/// The namespaces, the bridge between them, and its cuts.
pub struct Lan {
    hub: NetNamespace,
    hosts: [NetNamespace; 4],
}

impl Lan {
    /// A network whose links all work.
    pub fn new() -> Self {
        let lan = Self {
            hub: NetNamespace::make(),
            hosts: [(); 4].map(|()| NetNamespace::make()),
        };
        run(&lan.hub, "ip link add bridge type bridge");
        run(&lan.hub, "ip link set bridge up");
        for host in Host::ALL {
            lan.plug_in(host);
        }
        lan.cut(&[]);
        lan
    }

    fn plug_in(&self, host: Host) {
        let (port, ip, own) = (host.port(), host.ip(), self.of(host));
        let there = own.path();
        for line in [
            format!("ip link add {port} type veth peer name eth0 netns {there}"),
            format!("ip link set {port} master bridge up"),
        ] {
            run(&self.hub, &line);
        }
        run(own, &format!("ip address add {ip}/24 dev eth0"));
        run(own, "ip link set eth0 up");
    }

    /// Makes places for virtual machines beside the client.
    pub fn plug_in_guests(&self) {
        let (client, ip) = (self.of(Host::Client), Host::Client.ip());
        let [first, second] = [GuestPort::First, GuestPort::Second].map(GuestPort::name);
        for line in [
            "ip link add guests type bridge",
            &format!("ip tuntap add {first} mode tap"),
            &format!("ip tuntap add {second} mode tap"),
            &format!("ip link set {first} master guests up"),
            &format!("ip link set {second} master guests up"),
            &format!("ip address del {ip}/24 dev eth0"),
            "ip link set eth0 master guests",
            &format!("ip address add {ip}/24 dev guests"),
            "ip link set guests up",
        ] {
            run(client, line);
        }
    }

    /// The namespace of a host.
    pub fn of(&self, host: Host) -> &NetNamespace {
        &self.hosts[host as usize]
    }

    /// Lets nothing pass between the hosts of each pair, in either direction, and everything between all others. No host
    /// sees that its link is cut: its interface stays up.
    pub fn cut(&self, pairs: &[(Host, Host)]) {
        // The counters count the gratuitous ARP requests of the servers.
        let mut rules = String::from(
            "add table bridge lan\ndelete table bridge lan\ntable bridge lan {\ncounter garp-A { }\ncounter garp-B { }\n\
             chain forward { type filter hook forward priority 0; policy accept;\n",
        );
        for (one, other) in pairs {
            for (from, to) in [(one, other), (other, one)] {
                let (from, to) = (from.port(), to.port());
                writeln!(rules, "iifname \"{from}\" oifname \"{to}\" drop").unwrap();
            }
        }
        for (name, host) in [("garp-A", Host::A), ("garp-B", Host::B)] {
            let port = host.port();
            writeln!(
                rules,
                "iifname \"{port}\" arp saddr ip {ADDRESS} arp daddr ip {ADDRESS} counter name \"{name}\""
            )
            .unwrap();
        }
        rules.push_str("}\n}\n");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), rules).unwrap();
        let applied = self
            .hub
            .command()
            .args(["nft", "--file"])
            .arg(file.path())
            .output();
        let applied = applied.unwrap();
        assert!(applied.status.success(), "{applied:?}");
    }

    /// Whether a server has sent gratuitous ARP requests for the cluster address since the last change of the cuts.
    pub fn has_announced(&self, host: Host) -> bool {
        let line = format!("nft list counter bridge lan garp-{host:?}");
        let listed = run(&self.hub, &line);
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(text.contains("packets "), "{text}");
        !text.contains("packets 0 ")
    }

    /// Whether a server has TCP connections of the cluster address.
    pub fn has_connections(&self, host: Host) -> bool {
        let line = format!("ss --no-header --numeric --tcp src {ADDRESS}");
        !run(self.of(host), &line).stdout.is_empty()
    }
}

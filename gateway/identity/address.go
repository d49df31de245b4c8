package identity

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// The headers in which a chain of addresses stands, each proxy's word at the end. Any other holds one address.
const (
	xForwardedFor = "X-Forwarded-For"
	forwarded     = "Forwarded"
)

// The words of `proxy_protocol`.
const (
	proxyOff  = "off"
	proxyV1V2 = "v1v2"
)

const (
	// maxChain is how many proxies are walked over: beyond it the chain is taken for a forgery.
	maxChain = 64
	// maxProxies bounds the list of trusted networks, which is walked for each address.
	maxProxies = 1000
	maxHops    = maxChain
)

// AddressConfig is gateway.yaml's `client_address` section: whose word on the client's address counts.
type AddressConfig struct {
	// TrustedProxies are networks (or addresses) of proxies. What one of them says about the address before it is believed.
	TrustedProxies []string `yaml:"trusted_proxies"`
	// TrustedHops is how many proxies every request comes through, where their addresses are not known: the client is that many
	// places from the right. With TrustedProxies too, the hops are counted only for a peer that is one of them.
	TrustedHops int `yaml:"trusted_hops"`
	// Header is X-Forwarded-For (the default), Forwarded, or one that holds a single address, such as X-Real-IP,
	// CF-Connecting-IP or True-Client-IP. No other is read.
	Header string `yaml:"header"`
	// Prefix says how much of an address makes a client.
	Prefix Prefix `yaml:"prefix"`
	// ProxyProtocol is off (the default), or v1v2: a connection from one of TrustedProxies may begin with a PROXY header, whose
	// source is then the peer. From anybody else it is no HTTP and refused.
	ProxyProtocol string `yaml:"proxy_protocol"`
}

// Prefix is how many bits of an address make a client; 0 is the default of 32 and 64, for an IPv6 client owns its /64.
type Prefix struct {
	V4 int `yaml:"v4"`
	V6 int `yaml:"v6"`
}

// Validate returns everything that is wrong with c, nil if nothing.
func (c AddressConfig) Validate() error {
	_, err := NewAddresses(c)
	return err
}

// Client is where a request comes from.
type Client struct {
	// Addr is the client's address as far as trusted proxies tell; the zero address where even the peer has none.
	Addr netip.Addr
	// Network is the first address of the client's network: Addr without the bits behind the prefix.
	Network netip.Addr
	// Trusted tells that the peer, the connection's other end, is a trusted proxy: its word counts on more than the address.
	Trusted bool
}

// Addresses finds the client's address of requests.
type Addresses struct {
	proxies       []netip.Prefix
	hops          int
	header        string // canonical
	v4, v6        int
	proxyProtocol bool
}

// NewAddresses returns what c says, or everything that is wrong with it.
func NewAddresses(c AddressConfig) (*Addresses, error) {
	a := &Addresses{hops: c.TrustedHops, header: http.CanonicalHeaderKey(c.Header), v4: c.Prefix.V4, v6: c.Prefix.V6}
	var problems []error
	wrong := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("client_address."+format, args...))
	}
	for _, text := range c.TrustedProxies {
		proxy, err := network(text)
		if err != nil {
			wrong("trusted_proxies: %q %w", text, err)
			continue
		}
		a.proxies = append(a.proxies, proxy)
	}
	if len(a.proxies) > maxProxies {
		wrong("trusted_proxies: at most %d networks; write larger ones", maxProxies)
	}
	if c.TrustedHops < 0 || c.TrustedHops > maxHops {
		wrong("trusted_hops: give 0 to %d", maxHops)
	}
	switch {
	case c.Header == "":
		a.header = xForwardedFor
	case !isHeaderName(c.Header):
		wrong("header %q is not a header name; write for example X-Forwarded-For", c.Header)
	}
	if a.v4 == 0 {
		a.v4 = 32
	}
	if a.v6 == 0 {
		a.v6 = 64
	}
	if a.v4 < 0 || a.v4 > 32 || a.v6 < 0 || a.v6 > 128 {
		wrong("prefix: give v4 1 to 32 and v6 1 to 128")
	}
	switch c.ProxyProtocol {
	case "", proxyOff:
	case proxyV1V2:
		a.proxyProtocol = true
		if len(c.TrustedProxies) == 0 {
			wrong("proxy_protocol: name in trusted_proxies who may send a PROXY header")
		}
	default:
		wrong("proxy_protocol %q: write off or v1v2", c.ProxyProtocol)
	}
	return a, errors.Join(problems...)
}

// network reads a network or a single address. IPv4 networks have one form, however they were written.
func network(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if addr, single := netip.ParseAddr(text); single == nil && addr.Zone() == "" {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if err != nil {
		return prefix, errors.New("is not a network; write for example 10.0.0.0/8")
	}
	if addr := prefix.Addr(); addr.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	if prefix.Bits() == 0 {
		return prefix, errors.New("is everybody, so that every client could choose its address; name the proxies, or their number in trusted_hops")
	}
	return prefix.Masked(), nil
}

// Client returns where r comes from. Only a trusted peer's header is read, and that from its end: what stands left of the last
// address that is no trusted proxy's was written by just anybody.
func (a *Addresses) Client(r *http.Request) Client {
	peer := Peer(r.RemoteAddr)
	c := Client{Addr: peer, Trusted: a.trusts(peer, 0)}
	if c.Trusted {
		c.Addr = a.walk(peer, r.Header[a.header])
	}
	c.Network = a.Network(c.Addr)
	return c
}

// trusts tells whether the word of addr counts, which is so many hops away from us.
func (a *Addresses) trusts(addr netip.Addr, hop int) bool {
	switch {
	case a.hops == 0:
		return a.isProxy(addr)
	case hop == 0:
		return len(a.proxies) == 0 || a.isProxy(addr)
	default:
		return hop < a.hops
	}
}

func (a *Addresses) isProxy(addr netip.Addr) bool {
	for _, proxy := range a.proxies {
		if proxy.Contains(addr) {
			return true
		}
	}
	return false
}

// walk goes from a trusted peer over trusted proxies to the client. What is no address ends it, at the last one that was known.
func (a *Addresses) walk(last netip.Addr, lines []string) netip.Addr {
	if a.header != xForwardedFor && a.header != forwarded {
		if len(lines) == 1 {
			if addr, ok := parseNode(strings.Trim(lines[0], " \t")); ok {
				return addr
			}
		}
		return last
	}
	c := chain{lines: lines, quotes: a.header == forwarded}
	for hop := 1; hop <= maxChain; hop++ {
		element, ok := c.next()
		if !ok {
			break
		}
		if a.header == forwarded {
			if element, ok = forwardedFor(element); !ok {
				break
			}
		}
		addr, ok := parseNode(element)
		if !ok {
			break
		}
		last = addr
		if !a.trusts(addr, hop) {
			break
		}
	}
	return last
}

// Network returns the first address of the network that addr is counted with.
func (a *Addresses) Network(addr netip.Addr) netip.Addr {
	bits := a.v6
	if addr.Is4() {
		bits = a.v4
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return addr // the zero address
	}
	return prefix.Addr()
}

// Peer returns the address of the connection's other end, the zero address where remote names none. An IPv4 address that came
// over an IPv6 socket is the same client as over an IPv4 one, and a zone names one of our interfaces, not the client.
func Peer(remote string) netip.Addr {
	if at, err := netip.ParseAddrPort(remote); err == nil {
		return at.Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// isHeaderName tells whether name is an RFC 9110 token.
func isHeaderName(name string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune(marks, r)
	})
}

package identity_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/gateway/identity"
)

func addresses(t testing.TB, cfg identity.AddressConfig) *identity.Addresses {
	t.Helper()
	a, err := identity.NewAddresses(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func from(peer, header string, lines ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = peer
	for _, line := range lines {
		r.Header.Add(header, line)
	}
	return r
}

const (
	proxy  = "10.0.0.1:4711"
	public = "203.0.113.9:4711"
)

var private = []string{"10.0.0.0/8", "2001:db8:ffff::/48"}

func TestClientAddressByTrustedNetworks(t *testing.T) {
	for name, row := range map[string]struct {
		peer  string
		lines []string
		want  string
	}{
		"an untrusted peer's word is not read":        {public, []string{"192.0.2.1"}, "203.0.113.9"},
		"no header":                                   {proxy, nil, "10.0.0.1"},
		"the last address":                            {proxy, []string{"192.0.2.1"}, "192.0.2.1"},
		"what stands before an untrusted one":         {proxy, []string{"198.51.100.1, 192.0.2.1"}, "192.0.2.1"},
		"over trusted proxies":                        {proxy, []string{"198.51.100.1, 192.0.2.1, 10.9.9.9,10.1.1.1"}, "192.0.2.1"},
		"lines in their order":                        {proxy, []string{"198.51.100.1", "192.0.2.1, 10.9.9.9", "10.1.1.1"}, "192.0.2.1"},
		"all trusted: the first":                      {proxy, []string{"10.2.2.2, 10.1.1.1"}, "10.2.2.2"},
		"garbage stops the walk":                      {proxy, []string{"192.0.2.1, nonsense, 10.1.1.1"}, "10.1.1.1"},
		"garbage at the end":                          {proxy, []string{"192.0.2.1, nonsense"}, "10.0.0.1"},
		"an empty element":                            {proxy, []string{"192.0.2.1,, 10.1.1.1"}, "10.1.1.1"},
		"an empty line":                               {proxy, []string{"192.0.2.1", ""}, "10.0.0.1"},
		"unknown":                                     {proxy, []string{"192.0.2.1, unknown"}, "10.0.0.1"},
		"a port":                                      {proxy, []string{"192.0.2.1:80"}, "192.0.2.1"},
		"a bad port":                                  {proxy, []string{"192.0.2.1:http"}, "10.0.0.1"},
		"IPv6":                                        {proxy, []string{"2001:db8::1"}, "2001:db8::1"},
		"IPv6 in brackets":                            {proxy, []string{"[2001:db8::1]"}, "2001:db8::1"},
		"IPv6 with a port":                            {proxy, []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		"IPv6 with a zone":                            {proxy, []string{"fe80::1%eth0"}, "fe80::1"},
		"IPv6 without its bracket":                    {proxy, []string{"[2001:db8::1"}, "10.0.0.1"},
		"text behind the bracket":                     {proxy, []string{"[2001:db8::1]x"}, "10.0.0.1"},
		"IPv4 in brackets":                            {proxy, []string{"[192.0.2.1]"}, "10.0.0.1"},
		"an IPv4-mapped address":                      {proxy, []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
		"an IPv4-mapped proxy":                        {"[::ffff:10.0.0.1]:1", []string{"192.0.2.1, ::ffff:10.3.3.3"}, "192.0.2.1"},
		"an IPv6 proxy":                               {"[2001:db8:ffff::1%eth0]:1", []string{"192.0.2.1"}, "192.0.2.1"},
		"nobody's address":                            {proxy, []string{"0.0.0.0"}, "10.0.0.1"},
		"a number that is no address":                 {proxy, []string{"3221225985"}, "10.0.0.1"},
		"octal":                                       {proxy, []string{"0300.0.2.1"}, "10.0.0.1"},
		"two addresses without a comma":               {proxy, []string{"192.0.2.1 192.0.2.2"}, "10.0.0.1"},
		"a chain longer than anybody's":               {proxy, []string{"192.0.2.1" + strings.Repeat(", 10.1.1.1", 64)}, "10.1.1.1"},
		"a very long element":                         {proxy, []string{strings.Repeat("1", 60_000)}, "10.0.0.1"},
		"a peer without address is no trusted proxy":  {"@", []string{"192.0.2.1"}, "invalid IP"},
		"quotes have no meaning in X-Forwarded-For":   {proxy, []string{`"192.0.2.1, 10.1.1.1`}, "10.1.1.1"},
		"a forged end cannot hide what was appended":  {proxy, []string{`", 192.0.2.77`}, "192.0.2.77"},
		"tabs and spaces around":                      {proxy, []string{"\t 192.0.2.1 \t"}, "192.0.2.1"},
		"Forwarded is not read where it is not meant": {proxy, []string{"for=192.0.2.1"}, "10.0.0.1"},
	} {
		got := addresses(t, identity.AddressConfig{TrustedProxies: private}).Client(from(row.peer, "X-Forwarded-For", row.lines...))
		if got.Addr.String() != row.want {
			t.Errorf("%s: Client(%s, %q) = %s, want %s", name, row.peer, row.lines, got.Addr, row.want)
		}
	}
}

func TestClientAddressByForwarded(t *testing.T) {
	for line, want := range map[string]string{
		`for=192.0.2.60;proto=http;by=203.0.113.43`:                "192.0.2.60",
		`For="[2001:db8:cafe::17]:4711"`:                           "2001:db8:cafe::17",
		`proto=https ; for="192.0.2.60:8080"`:                      "192.0.2.60",
		`for="192.0.2.60" ; proto=http`:                            "192.0.2.60",
		`for=198.51.100.1, for=192.0.2.60, for="10.1.1.1"`:         "192.0.2.60",
		`for="192.0.2.60:_port"`:                                   "192.0.2.60",
		`for=192.0.2.60;`:                                          "192.0.2.60",
		`for=_hidden`:                                              "10.0.0.1",
		`for=192.0.2.60, for=_gazonk, for=10.1.1.1`:                "10.1.1.1",
		`for=192.0.2.60, for=unknown`:                              "10.0.0.1",
		`for="_hidden:80"`:                                         "10.0.0.1",
		`for=192.0.2.60, proto=https`:                              "10.0.0.1",
		`for=192.0.2.60;for=192.0.2.61`:                            "10.0.0.1",
		`for = 192.0.2.60`:                                         "10.0.0.1",
		`for`:                                                      "10.0.0.1",
		`for=`:                                                     "10.0.0.1",
		`for="192.0.2.60`:                                          "10.0.0.1",
		`for="192.0.2.60"x`:                                        "10.0.0.1",
		`192.0.2.60`:                                               "10.0.0.1",
		`for=192.0.2.60;ext="a,b;for=192.0.2.61"`:                  "192.0.2.60",
		`for=192.0.2.60;ext="a\"b,c"`:                              "192.0.2.60",
		`for=198.51.100.1, for=192.0.2.60;ext="a\"b"`:              "192.0.2.60",
		`for="\192.0.2.60"`:                                        "192.0.2.60",
		`for="evil, for=192.0.2.60`:                                "192.0.2.60",
		`for="evil\, for=192.0.2.60;proto=http`:                    "192.0.2.60",
		`for="[2001:db8::1]", for="evil, for="[2001:db8:aaaa::2]"`: "2001:db8:aaaa::2",
	} {
		got := addresses(t, identity.AddressConfig{TrustedProxies: private, Header: "forwarded"}).Client(from(proxy, "Forwarded", line))
		if got.Addr.String() != want {
			t.Errorf("Client(%s) = %s, want %s", line, got.Addr, want)
		}
	}
}

func TestClientAddressByHops(t *testing.T) {
	const chain = "198.51.100.1, 192.0.2.2, 192.0.2.3"
	for name, row := range map[string]struct {
		hops    int
		proxies []string
		peer    string
		want    string
	}{
		"one":                            {1, nil, public, "192.0.2.3"},
		"two":                            {2, nil, public, "192.0.2.2"},
		"more than there are":            {9, nil, public, "198.51.100.1"},
		"only behind the named proxies":  {1, private, public, "203.0.113.9"},
		"counted behind a named proxy":   {2, private, proxy, "192.0.2.2"},
		"a peer without address (a hop)": {1, nil, "@", "192.0.2.3"},
	} {
		got := addresses(t, identity.AddressConfig{TrustedHops: row.hops, TrustedProxies: row.proxies}).Client(from(row.peer, "X-Forwarded-For", chain))
		if got.Addr.String() != row.want {
			t.Errorf("%s: %s, want %s", name, got.Addr, row.want)
		}
	}
}

func TestClientAddressBySingleAddress(t *testing.T) {
	for _, header := range []string{"X-Real-IP", "CF-Connecting-IP", "True-Client-IP"} {
		a := addresses(t, identity.AddressConfig{TrustedProxies: private, Header: header})
		for want, r := range map[string]*http.Request{
			"2001:db8::1": from(proxy, header, " 2001:db8::1 "),
			"10.0.0.1":    from(proxy, header, "192.0.2.1, 192.0.2.2"),
			"10.0.0.2":    from("10.0.0.2:1", header, "192.0.2.1", "192.0.2.2"),
			"10.0.0.3":    from("10.0.0.3:1", "X-Forwarded-For", "192.0.2.1"),
			"203.0.113.9": from(public, header, "192.0.2.1"),
		} {
			if got := a.Client(r).Addr.String(); got != want {
				t.Errorf("%s: Client(%v) = %s, want %s", header, r.Header, got, want)
			}
		}
	}
}

func TestOnlyATrustedPeerIsTrusted(t *testing.T) {
	a := addresses(t, identity.AddressConfig{TrustedProxies: private})
	if !a.Client(from(proxy, "")).Trusted || a.Client(from(public, "X-Forwarded-For", "10.0.0.1")).Trusted {
		t.Error("trusted is who stands in trusted_proxies, and nobody else")
	}
	if addresses(t, identity.AddressConfig{}).Client(from("127.0.0.1:1", "")).Trusted {
		t.Error("without client_address nobody is trusted")
	}
}

func TestClientNetwork(t *testing.T) {
	networks := map[netip.Addr]bool{}
	a := addresses(t, identity.AddressConfig{TrustedProxies: private})
	for i := range 100 {
		c := a.Client(from(proxy, "X-Forwarded-For", fmt.Sprintf("2001:db8:1:2:%x::%x", i, i)))
		networks[c.Network] = true
	}
	if len(networks) != 1 || !networks[netip.MustParseAddr("2001:db8:1:2::")] {
		t.Errorf("100 addresses of a /64 are clients %v", networks)
	}
	for _, row := range []struct {
		prefix     identity.Prefix
		addr, want string
	}{
		{identity.Prefix{}, "192.0.2.77", "192.0.2.77"},
		{identity.Prefix{V4: 24}, "192.0.2.77", "192.0.2.0"},
		{identity.Prefix{V4: 24}, "::ffff:192.0.2.77", "192.0.2.0"},
		{identity.Prefix{V6: 56}, "2001:db8:1:2ff::1", "2001:db8:1:200::"},
		{identity.Prefix{V6: 128}, "2001:db8::1", "2001:db8::1"},
	} {
		a := addresses(t, identity.AddressConfig{TrustedProxies: private, Prefix: row.prefix})
		if got := a.Client(from(proxy, "X-Forwarded-For", row.addr)).Network.String(); got != row.want {
			t.Errorf("prefix %+v of %s = %s, want %s", row.prefix, row.addr, got, row.want)
		}
	}
}

func TestAddressConfigTellsAllErrorsAtOnce(t *testing.T) {
	err := identity.AddressConfig{
		TrustedProxies: []string{"10.0.0.0/8", "10.0.0.1", "lan", "0.0.0.0/0", "fe80::1%eth0"}, TrustedHops: -1, Header: "X Forwarded",
		Prefix: identity.Prefix{V4: 33}, ProxyProtocol: "v3",
	}.Validate()
	if err == nil {
		t.Fatal("Validate accepted it")
	}
	for _, want := range []string{`"lan" is not`, `"0.0.0.0/0" is everybody`, `"fe80::1%eth0" is not`, "trusted_hops", "header", "prefix", `proxy_protocol "v3"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q in it", err, want)
		}
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 7 {
		t.Errorf("Validate = %v: %d problems, want 7", err, n)
	}
	if err := (identity.AddressConfig{ProxyProtocol: "v1v2"}).Validate(); err == nil {
		t.Error("anybody may send a PROXY header")
	}
	if err := (identity.AddressConfig{ProxyProtocol: "off"}).Validate(); err != nil {
		t.Error(err)
	}
}

// What trusted proxies appended is read the same, whatever a client wrote before it.
func FuzzXForwardedFor(f *testing.F) { fuzzChain(f, "X-Forwarded-For", "%s") }

// FuzzForwarded is the same for RFC 7239.
func FuzzForwarded(f *testing.F) { fuzzChain(f, "Forwarded", `for=%s;proto=https`) }

func fuzzChain(f *testing.F, header, element string) {
	for _, seed := range []string{
		"", ",", `"`, `\`, `for="`, `for="\`, `for="a\",`, "192.0.2.1", "unknown", `for="[2001:db8::1]:80";by=_x, for=10.1.1.1`, "[", "1:", "::%1",
	} {
		f.Add(seed)
	}
	a := addresses(f, identity.AddressConfig{TrustedProxies: private, Header: header})
	f.Fuzz(func(t *testing.T, forged string) {
		const client, hop = "192.0.2.77", "10.1.1.1"
		appended := ", " + fmt.Sprintf(element, client) + ", " + fmt.Sprintf(element, hop)
		for _, lines := range [][]string{
			{forged + appended},
			{forged, strings.TrimPrefix(appended, ", ")},
			{forged + ", " + fmt.Sprintf(element, client), fmt.Sprintf(element, hop)},
		} {
			if got := identity.ParseForwarded(a, lines); got != client {
				t.Errorf("%q names %s, want %s", lines, got, client)
			}
		}
		got, err := netip.ParseAddr(identity.ParseForwarded(a, []string{forged}))
		if err != nil || got.Zone() != "" || got.Is4In6() || got.IsUnspecified() {
			t.Errorf("%q names %s, %v", forged, got, err)
		}
	})
}

package proxy_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/policy"
)

// headersSeen makes a request with header and returns what the upstream got.
func headersSeen(t *testing.T, trusted bool, header http.Header) http.Header {
	t.Helper()
	up := server(t, func(r *http.Request) string {
		r.Header.Set("Host", r.Host)
		text, _ := json.Marshal(r.Header)
		return string(text)
	})
	p := newProxy(t, proxy.Route{Name: "r", Upstreams: []string{up}, Forward: proxy.Forward{User: "X-User-Id"}})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
	r.Header = header
	id := policy.Identity{User: "alice", IP: netip.MustParseAddr("192.0.2.1")}
	if trusted {
		r = r.WithContext(proxy.WithTrustedPeer(r.Context()))
		id.IP = netip.MustParseAddr("198.51.100.7") // as it was found behind the peer
	}
	w, err := serve(t, p, r, "/", id)
	if err != nil {
		t.Fatal(err)
	}
	var seen http.Header
	if err := json.Unmarshal(w.Body.Bytes(), &seen); err != nil {
		t.Fatal(err)
	}
	return seen
}

// What a client says about itself, its way and its connection does not reach the upstream, however it is spelled.
func TestHeaderHygiene(t *testing.T) {
	seen := headersSeen(t, false, http.Header{
		"X-User-Id": {"mallory"}, "X_user_id": {"mallory"}, "X-User_id": {"mallory"},
		"Annona-Degraded": {"redis"}, "Annona_degraded": {"redis"},
		"X-Forwarded-For": {"10.0.0.1"}, "X_forwarded_for": {"10.0.0.1"}, "X-Forwarded-Host": {"evil"}, "X-Forwarded-Proto": {"https"},
		"X-Forwarded-Port": {"1"}, "X-Forwarded-Prefix": {"/evil"}, "X-Forwarded-User": {"root"}, "Forwarded": {"for=10.0.0.1"}, "X-Real-Ip": {"10.0.0.1"},
		"X-Original-Url": {"/admin"}, "X-Rewrite-Url": {"/admin"},
		"Connection": {"close, X-Private", "X-More"}, "X-Private": {"1"}, "X-More": {"1"}, "Keep-Alive": {"1"}, "Te": {"gzip"},
		"Proxy-Authorization": {"secret"}, "Proxy-Connection": {"x"}, "Trailer": {"X-User-Id"}, "Upgrade": {"x"},
		"Traceparent": {"00-x"}, "Baggage": {"x"}, "X-Kept": {"kept"}, "X_kept": {"kept"},
	})
	for name, want := range map[string]string{
		"X-User-Id": "alice", "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Host": "api.example.com", "X-Forwarded-Proto": "http",
		"X-Kept": "kept", "X_kept": "kept",
	} {
		if got := seen[name]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		delete(seen, name)
	}
	for _, name := range []string{"Host", "User-Agent", "Accept-Encoding"} {
		delete(seen, name)
	}
	if len(seen) != 0 {
		t.Errorf("the upstream also got %v", seen)
	}
}

// An own proxy before us tells of the way so far, and of nothing else; of the chain, what was verified and our peer go on.
func TestTrustedPeerTellsOfTheWay(t *testing.T) {
	seen := headersSeen(t, true, http.Header{
		"X-Forwarded-For": {"198.51.100.7", "10.0.0.1"}, "X-Forwarded-Host": {"www.example.com"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Port": {"443"},
		"X-Real-Ip": {"198.51.100.7"}, "X-User-Id": {"mallory"}, "Annona-Degraded": {"redis"}, "X_forwarded_for": {"1"},
	})
	for name, want := range map[string]string{
		"X-Forwarded-For": "198.51.100.7, 192.0.2.1", "X-Forwarded-Host": "www.example.com", "X-Forwarded-Proto": "https",
		"X-Forwarded-Port": "443", "X-Real-Ip": "198.51.100.7", "X-User-Id": "alice", "Annona-Degraded": "", "X_forwarded_for": "",
	} {
		got := ""
		if len(seen[name]) > 0 {
			got = seen[name][0]
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, seen[name], want)
		}
	}
}

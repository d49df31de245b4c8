package admin_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/limit"
)

const second = limit.MicrosPerSecond

// pool is one of which eu holds 30 and us, which settled everything, nothing.
func (b *bench) pool(policy string, n byte) lessor.Snapshot {
	return lessor.Snapshot{Now: 1000 * second, Pool: ledger.Pool{
		Policy: policy, Key: limit.Key{n}, Sealed: b.secret.Seal("user=acme"), Level: 50,
		Holdings: []ledger.Holding{
			{Region: "eu", Outstanding: 30, ExpiresAt: 1007*second + 1, HeardAt: 999 * second, Spent: 12, Denied: 3, Demand: 5},
			{Region: "us", ExpiresAt: 900 * second, HeardAt: 900 * second, Spent: 70},
		},
	}}
}

func TestRegions(t *testing.T) {
	b := newBench(t)
	b.lessor.regions = []lessor.RegionStatus{
		{Name: "eu", Agents: []string{"eu-1"}, Heard: time.Second, Outstanding: 30},
		{Name: "us", Heard: 4 * time.Second},
		{Name: "gone", Heard: time.Hour, Outstanding: 2},
		{Name: "gone-empty", Heard: time.Hour},
	}
	w := b.call(viewerToken, "GET", "/admin/v1/regions", "")
	got := decode[admin.Regions](t, w)
	lines := make([]string, 0, len(got.Items))
	for _, r := range got.Items {
		heard := "never"
		if r.LastHeard != nil {
			heard = r.LastHeard.Format(time.RFC3339)
		}
		lines = append(lines, fmt.Sprintf("%s %d %.2f %s %v %d %s", r.Name, r.Weight, r.Share, r.State, r.Agents, r.TokensLeased, heard))
	}
	want := `ap 1 0.25 silent [] 0 never
eu 1 0.25 live [eu-1] 30 2026-01-02T03:04:04Z
gone 0 0.00 silent [] 2 2026-01-02T02:04:05Z
us 2 0.50 silent [] 0 2026-01-02T03:04:01Z`
	if text := strings.Join(lines, "\n"); text != want {
		t.Errorf("regions:\n%s\nwant:\n%s", text, want)
	}
	if got.Revision != 3 || got.Shards != 32 || got.Times.Contact != 3 || got.Times.TTL != 10 || got.Times.Margin != 4 || got.Times.StandingFor != 86400 {
		t.Errorf("document %+v, want revision 3, 32 shards and whole seconds rounded up", got)
	}
	b.loaded = false
	wantProblem(t, b.call(viewerToken, "GET", "/admin/v1/regions", ""), http.StatusServiceUnavailable)
}

func TestLeases(t *testing.T) {
	b := newBench(t)
	other := b.pool("b", 9)
	other.Variant, other.Sealed, other.Level = "tier:premium", []byte("sealed by another secret....."), -4
	other.Holdings = other.Holdings[:1]
	settled := b.pool("c", 1)
	settled.Holdings = settled.Holdings[1:]
	b.lessor.pools = []lessor.Snapshot{b.pool("a", 1), other, settled}
	for query, want := range map[string]string{
		"":             "a /user=acme/ 50 eu=30@8; b tier:premium// 0 eu=30@8",
		"?policy=a":    "a /user=acme/ 50 eu=30@8",
		"?region=eu":   "a /user=acme/ 50 eu=30@8; b tier:premium// 0 eu=30@8",
		"?region=us":   "", // it holds nothing
		"?policy=none": "",
		"?key_id=09000000000000000000000000000000":          "b tier:premium// 0 eu=30@8",
		"?key_id=09000000000000000000000000000000&policy=a": "",
	} {
		list := decode[admin.List[admin.Lease]](t, b.call(viewerToken, "GET", "/admin/v1/leases"+query, ""))
		lines := make([]string, 0, len(list.Items))
		for _, l := range list.Items {
			words := []string{l.Policy, l.Variant + "/" + l.Identity + "/", strconv.FormatInt(l.PoolLevel, 10)}
			for _, r := range l.Regions {
				words = append(words, fmt.Sprintf("%s=%d@%d", r.Region, r.Outstanding, r.ExpiresIn))
			}
			lines = append(lines, strings.Join(words, " "))
		}
		if got := strings.Join(lines, "; "); got != want || list.Items == nil || list.Next != "" {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

func TestLeasesComeInPages(t *testing.T) {
	b := newBench(t)
	for i := range 250 {
		b.lessor.pools = append(b.lessor.pools, b.pool(fmt.Sprintf("p%d", i/200), byte(i%200)))
	}
	var seen []string
	cursor := ""
	for page := 0; page == 0 || cursor != ""; page++ {
		list := decode[admin.List[admin.Lease]](t, b.call(viewerToken, "GET", "/admin/v1/leases?cursor="+cursor, ""))
		for _, l := range list.Items {
			seen = append(seen, l.Policy+l.KeyID)
		}
		if cursor = list.Next; page > 2 {
			t.Fatal("more pages than leases")
		}
	}
	if len(seen) != 250 {
		t.Fatalf("%d leases in all pages, want 250", len(seen))
	}
	for i, p := range b.lessor.pools {
		if seen[i] != p.Policy+p.Key.String() {
			t.Fatalf("lease %d is %s, want %s", i, seen[i], p.Policy+p.Key.String())
		}
	}
}

func TestBadLeaseQueries(t *testing.T) {
	b := newBench(t)
	for _, query := range []string{
		"?user=acme", "?policy=a&policy=b", "?key_id=xyz", "?key_id=0900", "?cursor=!", "?cursor=AAAA", "?%zz", "?policy=a;region=b",
		"?cursor=" + strings.Repeat("A", 200),
	} {
		wantProblem(t, b.call(viewerToken, "GET", "/admin/v1/leases"+query, ""), http.StatusBadRequest)
	}
	b.lessor.fail = errBroken
	if p := wantProblem(t, b.call(viewerToken, "GET", "/admin/v1/leases", ""), http.StatusServiceUnavailable); strings.Contains(p.Detail, "nats") {
		t.Errorf("the client reads the cause: %s", p.Detail)
	}
}

func TestAPanicIsAnAnswer(t *testing.T) {
	b := newBench(t)
	b.lessor.panics = true
	if p := wantProblem(t, b.call(viewerToken, "GET", "/admin/v1/leases", ""), http.StatusInternalServerError); strings.Contains(p.Detail, "secret") {
		t.Errorf("the client reads the cause: %s", p.Detail)
	}
	if !strings.Contains(b.log.String(), "secret cause") || !strings.Contains(b.log.String(), "leases_test.go") && !strings.Contains(b.log.String(), "server_test.go") {
		t.Errorf("the log lacks the cause or its stack:\n%s", b.log)
	}
}

package admin_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

func (b *bench) usage(body string) *httptest.ResponseRecorder {
	return b.call(viewerToken, "POST", "/admin/v1/usage", body, "Content-Type", "application/json")
}

// keyOf is the key that gateways use for an identity.
func (b *bench) keyOf(t *testing.T, name string, id policy.Identity) limit.Key {
	t.Helper()
	doc, _ := policy.Parse([]byte(document))
	fields, _, err := doc.Policy(name).FieldsFor(&policy.Request{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	return b.secret.Key(fields...)
}

func TestUsageOfAClientWithLeases(t *testing.T) {
	b := newBench(t)
	pool := b.pool("api-per-user", 0)
	pool.Key = b.keyOf(t, "api-per-user", policy.Identity{User: "acme"})
	b.lessor.pools = []lessor.Snapshot{pool}
	for i := range 60 {
		b.lessor.denied = append(b.lessor.denied, lessor.Denial{At: b.now.Add(time.Duration(i) * time.Second), Region: "eu", Cost: 1, TraceID: "t"})
	}
	w := b.usage(`{"policy": "api-per-user", "identity": {"user": "acme"}}`)
	u := decode[admin.Usage](t, w)
	if w.Code != http.StatusOK || u.Limit != 200 || u.Scope != policy.Global || u.KeyID != pool.Key.String() || !strings.Contains(u.Identity, "acme") {
		t.Fatalf("usage: %d %s", w.Code, w.Body)
	}
	// Pool 50, eu's lease 30, and the allotments of us (10 % of half of 200) and ap, which ask for nothing.
	if *u.PoolLevel != 50 || *u.Remaining != 50+30+10+5 || *u.Reset != 64 {
		t.Errorf("pool_level %d remaining %d reset %d, want 50, 95 and 64 s for the other 105 at 1.666666/s", *u.PoolLevel, *u.Remaining, *u.Reset)
	}
	if len(u.Regions) != 3 || u.Regions[0].Region != "ap" || u.Regions[0].HeardAt != nil || u.Regions[0].Expires != nil || u.Regions[0].Allotment != 5 {
		t.Errorf("regions %+v, want ap first, with its allotment and never heard", u.Regions)
	}
	eu := u.Regions[1]
	if eu.Region != "eu" || eu.Allotment != 5 || eu.Lease != 30 || *eu.Expires != 8 || eu.Spent != 12 || eu.Denied != 3 || !eu.HeardAt.Equal(b.now.Add(-time.Second)) {
		t.Errorf("eu: %+v", eu)
	}
	if len(u.Denials) != 50 || !u.Denials[0].At.Equal(b.now.Add(59*time.Second)) || u.Denials[0].TraceID != "t" {
		t.Errorf("%d denials from %v, want the newest 50", len(u.Denials), u.Denials[0])
	}
}

func TestUsageOfAnExhaustedClient(t *testing.T) {
	b := newBench(t)
	pool := b.pool("api-per-user", 0)
	pool.Key = b.keyOf(t, "api-per-user", policy.Identity{User: "acme"})
	pool.Level = -20
	for i := range pool.Holdings {
		pool.Holdings[i].Outstanding, pool.Holdings[i].Demand = 0, 9
	}
	busy := pool.Holdings[0]
	busy.Region = "ap"
	pool.Holdings = append(pool.Holdings, busy)
	b.lessor.pools = []lessor.Snapshot{pool}
	u := decode[admin.Usage](t, b.usage(`{"policy": "api-per-user", "identity": {"user": "acme"}}`))
	if *u.Remaining != 0 || *u.PoolLevel != 0 || *u.Reset != 1 {
		t.Errorf("remaining %d, pool level %d, reset %d; want 0, 0 (a debt is not shown) and 1 s until the next token", *u.Remaining, *u.PoolLevel, *u.Reset)
	}
}

func TestUsageOfAnUnknownClientIsItsWholeLimit(t *testing.T) {
	b := newBench(t)
	for body, want := range map[string]limit.Tokens{
		`{"policy": "api-per-user", "identity": {"user": "new"}}`:                    200,
		`{"policy": "api-per-user", "identity": {"user": "new", "tier": "premium"}}`: 2000,
	} {
		w := b.usage(body)
		u := decode[admin.Usage](t, w)
		if u.Limit != want || *u.Remaining != want || *u.Reset != 0 || u.Denials == nil || len(u.Regions) != 3 {
			t.Errorf("%s: %s, want all of %d", body, w.Body, want)
		}
	}
}

// An override says more than what the pool was last asked under, which may have been before it began.
func TestUsageUnderAnOverride(t *testing.T) {
	b := newBench(t)
	pool := b.pool("api-per-user", 0)
	pool.Key = b.keyOf(t, "api-per-user", policy.Identity{User: "vip"})
	b.lessor.pools = []lessor.Snapshot{pool}
	u := decode[admin.Usage](t, b.usage(`{"policy": "api-per-user", "identity": {"user": "vip"}}`))
	if u.Limit != 300 || !strings.HasPrefix(u.Variant, "override:") {
		t.Errorf("limit %d of %q, want the override's 300", u.Limit, u.Variant)
	}
}

func TestUsageOfScopeRegion(t *testing.T) {
	b := newBench(t)
	w := b.usage(`{"policy": "local-per-ip", "identity": {"ip": "::ffff:192.0.2.1"}}`)
	u := decode[admin.Usage](t, w)
	if u.Scope != policy.RegionOnly || u.Remaining != nil || u.PoolLevel != nil || u.Regions[0].Allotment != 10 {
		t.Errorf("usage: %s, want no remainder and all of the limit in each region", w.Body)
	}
	plain := decode[admin.Usage](t, b.usage(`{"policy": "local-per-ip", "identity": {"ip": "192.0.2.1"}}`))
	if plain.KeyID != u.KeyID {
		t.Error("an IPv4 address and its form in IPv6 are two clients")
	}
}

func TestUsageFieldsAreSnakeCase(t *testing.T) {
	b := newBench(t)
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b.usage(`{"policy": "api-per-user", "identity": {"user": "u"}}`).Body.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"policy", "scope", "key_id", "identity", "limit", "remaining", "reset", "pool_level", "regions", "denials"} {
		if fields[name] == nil {
			t.Errorf("no field %s", name)
		}
	}
}

func TestBadUsageRequests(t *testing.T) {
	const good = `{"policy": "api-per-user", "identity": {"user": "u"}}`
	for name, r := range map[string]struct {
		media, body string
		status      int
	}{
		"unknown policy":          {"application/json", `{"policy": "none", "identity": {"user": "u"}}`, 404},
		"no policy":               {"application/json", `{"identity": {"user": "u"}}`, 404},
		"unknown field":           {"application/json", `{"policy": "api-per-user", "identity": {"user": "u"}, "cost": 1}`, 400},
		"unknown identity field":  {"application/json", `{"policy": "api-per-user", "identity": {"usr": "u"}}`, 400},
		"wrong type":              {"application/json", `{"policy": 1}`, 400},
		"identity as text":        {"application/json", `{"policy": "api-per-user", "identity": "u"}`, 400},
		"address that is none":    {"application/json", `{"policy": "local-per-ip", "identity": {"ip": "300.1.1.1"}}`, 400},
		"raw API key":             {"application/json", `{"policy": "api-per-user", "identity": {"api_key": "hunter2"}}`, 400},
		"key part missing":        {"application/json", `{"policy": "api-per-user", "identity": {"ip": "192.0.2.1"}}`, 422},
		"empty":                   {"application/json", ``, 400},
		"cut":                     {"application/json", good[:20], 400},
		"null and more":           {"application/json", good + good, 400},
		"array":                   {"application/json", `[]`, 400},
		"too large":               {"application/json", `{"policy": "` + strings.Repeat("x", 20000) + `"}`, 413},
		"not said to be JSON":     {"text/plain", good, 415},
		"nothing said of it":      {"", good, 415},
		"said with its parameter": {"application/json; charset=utf-8", good, 200},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			w := b.call(viewerToken, "POST", "/admin/v1/usage", r.body, "Content-Type", r.media)
			if r.status == http.StatusOK && w.Code == http.StatusOK {
				return
			}
			if p := wantProblem(t, w, r.status); strings.Contains(p.Detail, "hunter2") || strings.Contains(p.Detail, "300.1.1.1") {
				t.Errorf("the answer quotes the identity: %s", p.Detail)
			}
		})
	}
}

func TestUsageBeforeTheAllocatorIsReady(t *testing.T) {
	const good = `{"policy": "api-per-user", "identity": {"user": "u"}}`
	b := newBench(t)
	b.loaded = false
	wantProblem(t, b.usage(good), http.StatusServiceUnavailable)
	b.loaded, b.lessor.fail = true, errBroken
	wantProblem(t, b.usage(good), http.StatusServiceUnavailable)
}

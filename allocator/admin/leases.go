package admin

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/limit"
)

// Lease is one pool of which regions hold tokens.
type Lease struct {
	Policy    string    `json:"policy"`
	Variant   string    `json:"variant,omitempty"`
	KeyID     string    `json:"key_id"`
	Identity  string    `json:"identity,omitempty"` // absent where no sealed identity opens with this allocator's secret
	PoolLevel int64     `json:"pool_level"`
	Regions   []Holding `json:"regions"`
}

// Holding is what one region holds of a pool.
type Holding struct {
	Region      string       `json:"region"`
	Outstanding limit.Tokens `json:"outstanding"`
	ExpiresIn   int64        `json:"expires_in"`
}

// leaseQuery is what GET /leases filters by; after is the last pool of the page before.
type leaseQuery struct {
	policy, region string
	key            *limit.Key
	after          *poolName
}

type poolName struct {
	policy string
	key    limit.Key
}

func (s *Server) getLeases(c echo.Context, from *sources) error {
	query, err := readLeaseQuery(c)
	if err != nil {
		return err
	}
	pools, err := from.lessor.Pools(c.Request().Context(), query.keeps, pageSize+1)
	if err != nil {
		return because(errLessorOut, err)
	}
	list := List[Lease]{Items: make([]Lease, 0, len(pools))}
	if len(pools) > pageSize {
		pools = pools[:pageSize]
		last := pools[pageSize-1]
		list.Next = poolName{policy: last.Policy, key: last.Key}.cursor()
	}
	for _, pool := range pools {
		list.Items = append(list.Items, s.describeLease(pool, query.region))
	}
	return reply(c, list)
}

func (s *Server) describeLease(pool lessor.Snapshot, region string) Lease {
	l := Lease{
		Policy: pool.Policy, Variant: pool.Variant, KeyID: pool.Key.String(), PoolLevel: int64(max(pool.Level, 0)),
		Regions: make([]Holding, 0, len(pool.Holdings)),
	}
	if identity, err := s.cfg.Secret.Open(pool.Sealed); err == nil {
		l.Identity = identity
	}
	for _, h := range pool.Holdings {
		if holds(h, region) {
			left := secondsOf(h.ExpiresAt - pool.Now)
			l.Regions = append(l.Regions, Holding{Region: h.Region, Outstanding: h.Outstanding, ExpiresIn: left})
		}
	}
	return l
}

// holds reports whether h is a lease of region, or of any where region is "".
func holds(h ledger.Holding, region string) bool {
	return h.Outstanding > 0 && (region == "" || h.Region == region)
}

func (q *leaseQuery) keeps(p ledger.Pool) bool {
	if q.policy != "" && p.Policy != q.policy || q.key != nil && p.Key != *q.key {
		return false
	}
	if q.after != nil && !q.after.before(p) {
		return false
	}
	for _, h := range p.Holdings {
		if holds(h, q.region) {
			return true
		}
	}
	return false
}

// before compares in the order of the list: by policy, then key.
func (n poolName) before(p ledger.Pool) bool {
	if n.policy != p.Policy {
		return n.policy < p.Policy
	}
	return string(n.key[:]) < string(p.Key[:])
}

func (n poolName) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(n.key.String() + n.policy))
}

func parseCursor(text string) (*poolName, error) {
	const digits = 2 * limit.KeySize
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) < digits {
		return nil, badRequest("this cursor is not one that a list answered; start without")
	}
	key, err := limit.ParseKey(string(raw[:digits]))
	if err != nil {
		return nil, badRequest("this cursor is not one that a list answered; start without")
	}
	return &poolName{policy: string(raw[digits:]), key: key}, nil
}

func readLeaseQuery(c echo.Context) (*leaseQuery, error) {
	if err := onlyQuery(c, "policy", "region", "key_id", "cursor"); err != nil {
		return nil, err
	}
	q := &leaseQuery{policy: c.QueryParam("policy"), region: c.QueryParam("region")}
	if text := c.QueryParam("key_id"); text != "" {
		key, err := limit.ParseKey(strings.ToLower(text))
		if err != nil {
			return nil, badRequest("key_id has %d hexadecimal digits, as in the list of leases", 2*limit.KeySize)
		}
		q.key = &key
	}
	if text := c.QueryParam("cursor"); text != "" {
		after, err := parseCursor(text)
		if err != nil {
			return nil, err
		}
		q.after = after
	}
	return q, nil
}

// queryOf parses the query string, which the standard library's shortcuts do leniently.
func queryOf(r *http.Request) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query string is not well-formed")
	}
	return values, nil
}

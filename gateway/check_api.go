package gateway

import (
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// CheckRequest is the body of POST /v1/check. openapi.json describes it, and a test keeps the two alike.
type CheckRequest struct {
	Identity CheckIdentity `json:"identity"`
	Request  CheckedCall   `json:"request"`
	// Policy, if not "", is the only one asked.
	Policy string `json:"policy,omitempty"`
	// Cost stands in place of what the policies say.
	Cost *limit.Tokens `json:"cost,omitempty"`
	// Peek charges nothing.
	Peek bool `json:"peek,omitempty"`
}

// CheckIdentity is whose tokens are asked for, as the caller verified it. It is a body and never a URL: URLs end in logs.
type CheckIdentity struct {
	User string `json:"user,omitempty"`
	// APIKey is the SHA-256 of a key in 64 hexadecimal digits, as in the file of API keys. Any other text is taken for the key
	// itself, and hashed at once.
	APIKey string            `json:"api_key,omitempty"`
	IP     string            `json:"ip,omitempty"`
	Tier   string            `json:"tier,omitempty"`
	Claims map[string]string `json:"claims,omitempty"`
}

// CheckedCall is the request that the caller carries.
type CheckedCall struct {
	Method  string            `json:"method,omitempty"` // default GET
	Host    string            `json:"host,omitempty"`
	Path    string            `json:"path,omitempty"` // as in a request line, default /
	Headers map[string]string `json:"headers,omitempty"`
}

// CheckAnswer is the answer to POST /v1/check, also where the request is denied.
type CheckAnswer struct {
	Allowed   bool            `json:"allowed"`
	Decisions []CheckDecision `json:"decisions"`
}

// CheckDecision is one matching policy's part: amounts in whole tokens, durations in whole seconds rounded up.
type CheckDecision struct {
	Policy     string       `json:"policy"`
	Allowed    bool         `json:"allowed"`
	Limit      limit.Tokens `json:"limit"`
	Remaining  limit.Tokens `json:"remaining"`
	Reset      int64        `json:"reset"`
	ResetAt    time.Time    `json:"reset_at"`
	RetryAfter *int64       `json:"retry_after"` // null where allowed
	Enforced   bool         `json:"enforced"`
}

// UsageRequest is the body of POST /v1/usage.
type UsageRequest struct {
	Policy   string        `json:"policy"`
	Identity CheckIdentity `json:"identity"`
}

// UsageAnswer is this region's view of one client under one policy.
type UsageAnswer struct {
	Policy    string       `json:"policy"`
	Region    string       `json:"region"`
	Scope     policy.Scope `json:"scope"`
	KeyID     string       `json:"key_id"`
	Limit     limit.Tokens `json:"limit"`
	Remaining limit.Tokens `json:"remaining"` // the best estimate of what is left of the limit
	Reset     int64        `json:"reset"`
	ResetAt   time.Time    `json:"reset_at"`
	// Allotment is what the region keeps of the limit (all of it where the scope is region), Left what is left of that, Lease
	// what the region holds of the pool besides.
	Allotment limit.Tokens `json:"allotment"`
	Left      limit.Tokens `json:"left"`
	Lease     limit.Tokens `json:"lease"`
	// PoolLevel is as last heard, at PoolHeardAt; null where none was.
	PoolLevel   *limit.Tokens `json:"pool_level"`
	PoolHeardAt *time.Time    `json:"pool_heard_at"`
}

func checkAnswer(d admit.Decision, judgements []admit.Judgement, now time.Time) CheckAnswer {
	a := CheckAnswer{Allowed: d.Answer == admit.Admitted, Decisions: make([]CheckDecision, 0, len(judgements))}
	for _, j := range judgements {
		one := CheckDecision{
			Policy: j.Policy.Name, Allowed: j.Allowed, Limit: j.Limit.Capacity, Remaining: j.Remaining,
			Reset: seconds(j.Reset), Enforced: j.Enforced,
		}
		one.ResetAt = after(now, one.Reset)
		if !j.Allowed {
			retry := seconds(j.RetryIn)
			one.RetryAfter = &retry
		}
		a.Decisions = append(a.Decisions, one)
	}
	return a
}

func usageAnswer(region string, s admit.Standing, now time.Time) UsageAnswer {
	a := UsageAnswer{
		Policy: s.Policy.Name, Region: region, Scope: s.Policy.Scope, KeyID: s.Key.String(), Limit: s.Limit.Capacity,
		Remaining: s.Remaining, Reset: seconds(s.Reset), Allotment: s.Part.Capacity, Left: s.Own, Lease: s.Lease,
	}
	a.ResetAt = after(now, a.Reset)
	if s.Policy.Scope == policy.Global && s.PoolAge >= 0 {
		heard := now.Add(-s.PoolAge).UTC().Truncate(time.Second)
		a.PoolLevel, a.PoolHeardAt = &s.Pool, &heard
	}
	return a
}

// after is an instant as JSON has it: UTC, whole seconds, not before the time has passed.
func after(now time.Time, seconds int64) time.Time {
	at := now.UTC().Add(time.Duration(seconds) * time.Second)
	if whole := at.Truncate(time.Second); !whole.Equal(at) {
		return whole.Add(time.Second)
	}
	return at
}

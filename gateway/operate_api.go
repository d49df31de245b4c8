package gateway

import (
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// BlockRequest is the body of POST /v1/blocks: exactly one part of an identity, user, api_key or ip, is refused from then on.
type BlockRequest struct {
	Identity CheckIdentity `json:"identity"`
	Reason   string        `json:"reason,omitempty"` // for operators; at most 256 bytes, and no secret
	// For is for how long, in seconds; 0 or nothing: until it is removed.
	For int64 `json:"for,omitempty"`
}

// BlockAnswer is one block. Its id is what DELETE /v1/blocks/{id} takes; the identity is in clear, for operators only.
type BlockAnswer struct {
	ID       string     `json:"id"`
	Identity string     `json:"identity"`
	Reason   string     `json:"reason"`
	Since    time.Time  `json:"since"`
	Until    *time.Time `json:"until"` // null: until it is removed
}

// BlocksAnswer is a page of blocks. All of them fit one.
type BlocksAnswer struct {
	Items []BlockAnswer `json:"items"`
	Next  string        `json:"next,omitempty"`
}

// BanAnswer is one client that a policy banned.
type BanAnswer struct {
	ID       string    `json:"id"`
	Policy   string    `json:"policy"`
	Identity string    `json:"identity"`
	Until    time.Time `json:"until"`
}

// BansAnswer is a page of bans; Next, if there is more, is the cursor of the page after it.
type BansAnswer struct {
	Items []BanAnswer `json:"items"`
	Next  string      `json:"next,omitempty"`
}

// CandidateAnswer tells how a candidate policy would have decided in the current one's place, since this gateway took the
// document over.
type CandidateAnswer struct {
	Candidate     string          `json:"candidate"`
	CandidateOf   string          `json:"candidate_of"`
	Revision      uint64          `json:"revision"`
	Since         time.Time       `json:"since"`
	Requests      int64           `json:"requests"`
	NewlyDenied   int64           `json:"newly_denied"`
	NewlyAdmitted int64           `json:"newly_admitted"`
	Examples      []ExampleAnswer `json:"examples"`
}

// ExampleAnswer is one request that would have been decided otherwise.
type ExampleAnswer struct {
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"` // newly_denied, newly_admitted
	KeyID   string    `json:"key_id"`
	TraceID string    `json:"trace_id,omitempty"`
}

// CandidatesAnswer is all of a document's.
type CandidatesAnswer struct {
	Items []CandidateAnswer `json:"items"`
	Next  string            `json:"next,omitempty"`
}

// opened is a sealed identity in clear.
func opened(secret *limit.Secret, sealed []byte) string {
	text, err := secret.Open(sealed)
	if err != nil {
		return ""
	}
	return text
}

func blockAnswer(secret *limit.Secret, b bucket.Block, now time.Time) BlockAnswer {
	a := BlockAnswer{
		ID: b.ID.String(), Identity: opened(secret, b.Sealed), Reason: b.Reason, Since: now.Add(-b.Since).UTC().Truncate(time.Second),
	}
	if b.Left > 0 {
		until := after(now, int64((b.Left+time.Second-1)/time.Second))
		a.Until = &until
	}
	return a
}

func candidateAnswer(r admit.Rollout) CandidateAnswer {
	a := CandidateAnswer{
		Candidate: r.Candidate, CandidateOf: r.Current, Revision: r.Revision, Since: r.Since.UTC().Truncate(time.Second),
		Requests: r.Requests, NewlyDenied: r.NewlyDenied, NewlyAdmitted: r.NewlyAdmitted, Examples: []ExampleAnswer{},
	}
	for _, e := range r.Examples {
		a.Examples = append(a.Examples, ExampleAnswer{
			At: e.At.UTC().Truncate(time.Second), Outcome: e.Outcome, KeyID: e.KeyID, TraceID: e.TraceID,
		})
	}
	return a
}

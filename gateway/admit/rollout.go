package admit

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// maxExamples is how many of the last requests that would be decided differently a report keeps.
const maxExamples = 20

// The ways in which a candidate decides beside its current policy.
const (
	asCurrent     = "same"
	newlyDenied   = "newly_denied"
	newlyAdmitted = "newly_admitted"
)

// Rollout is what came of a candidate policy so far, in this gateway: how many of the requests that either of the two policies
// matched would be decided otherwise if the candidate stood in the current one's place.
type Rollout struct {
	Candidate, Current string
	// Revision is the policy document's since which it counts, Since when that was.
	Revision uint64
	Since    time.Time
	// Requests are all; those that are neither NewlyDenied nor NewlyAdmitted are decided alike.
	Requests, NewlyDenied, NewlyAdmitted int64
	// Examples are the last requests that would be decided otherwise, the newest first.
	Examples []Example
}

// Example is one request that a candidate would decide otherwise. It names the client by its key, never in clear.
type Example struct {
	At      time.Time
	Outcome string
	KeyID   string
	TraceID string
}

// rollouts keeps a report for each candidate of the snapshot in use.
type rollouts struct {
	mu struct {
		sync.Mutex

		snapshot *Snapshot
		since    time.Time
		reports  map[string]*Rollout // by candidate, which are as many as the document has
	}
}

// note counts one request.
func (r *rollouts) note(s *Snapshot, candidate *policy.Policy, e Example) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.snapshot != s {
		r.mu.snapshot, r.mu.since, r.mu.reports = s, e.At, map[string]*Rollout{}
	}
	report := r.mu.reports[candidate.Name]
	if report == nil {
		report = &Rollout{
			Candidate: candidate.Name, Current: candidate.CandidateOf, Revision: s.Revision(), Since: r.mu.since,
		}
		r.mu.reports[candidate.Name] = report
	}
	report.Requests++
	switch e.Outcome {
	case newlyDenied:
		report.NewlyDenied++
	case newlyAdmitted:
		report.NewlyAdmitted++
	default:
		return
	}
	report.Examples = append([]Example{e}, report.Examples[:min(len(report.Examples), maxExamples-1)]...)
}

// Rollouts reports on the candidates of the document in use, in document order.
func (a *Admitter) Rollouts() []Rollout {
	s := a.snapshot.Load()
	if s == nil {
		return nil
	}
	r := &a.rollouts
	r.mu.Lock()
	defer r.mu.Unlock()
	var reports []Rollout
	for _, p := range s.document.Policies {
		if p.CandidateOf == "" {
			continue
		}
		report := Rollout{Candidate: p.Name, Current: p.CandidateOf, Revision: s.Revision()}
		if found := r.mu.reports[p.Name]; found != nil && r.mu.snapshot == s {
			report = *found
			report.Examples = append([]Example(nil), found.Examples...)
		}
		reports = append(reports, report)
	}
	return reports
}

// compare has candidates decide beside their current policies and returns what the request owes them. Where the request was
// denied by other policies, neither of the two was charged and nothing can be compared.
func (a *Admitter) compare(ctx context.Context, s *Snapshot, answer Answer, enforced, candidates []*claim) *Hold {
	var owed *Hold
	for _, c := range candidates {
		denies := false
		for _, current := range enforced {
			if current.policy.Name == c.policy.CandidateOf {
				denies = current.violated(answer)
			}
		}
		if answer == Denied && !denies {
			continue
		}
		outcome, err := a.take(ctx, []*claim{c}, false, 0)
		if err != nil {
			continue // the store's health shows elsewhere
		}
		a.compared(ctx, s, c.policy, c, denies, outcome != bucket.Admitted)
		if outcome == bucket.Admitted {
			owed = owed.join(a.hold([]*claim{c}))
		}
	}
	for _, current := range enforced {
		if !current.violated(answer) {
			continue
		}
		for _, p := range s.candidates[current.policy] {
			if !among(candidates, p) { // it does not match the request, so it would not deny it
				a.compared(ctx, s, p, current, true, false)
			}
		}
	}
	return owed
}

func among(claims []*claim, p *policy.Policy) bool {
	for _, c := range claims {
		if c.policy == p {
			return true
		}
	}
	return false
}

// violated tells whether c's policy denied the request.
func (c *claim) violated(answer Answer) bool {
	return answer == Denied && c.asked && !c.passed && (c.state.Lacking || c.state.Banned > 0)
}

// compared notes how the candidate and its current policy decided; c is the claim that tells the client.
func (a *Admitter) compared(ctx context.Context, s *Snapshot, candidate *policy.Policy, c *claim, current, denies bool) {
	outcome := asCurrent
	switch {
	case denies && !current:
		outcome = newlyDenied
	case current && !denies:
		outcome = newlyAdmitted
	}
	e := Example{At: time.Now(), Outcome: outcome, KeyID: c.charge.Key.String()}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		e.TraceID = span.TraceID().String()
	}
	a.rollouts.note(s, candidate, e)
	a.options.Telemetry.Metrics.Candidates.Add(ctx, 1, metric.WithAttributes(
		telemetry.LabelPolicy.String(candidate.Name), telemetry.LabelOutcome.String(outcome),
		attribute.String("region", a.options.Region)))
}

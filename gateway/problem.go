package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// The problem types that are registered for limits.
const (
	typeQuota    = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// statusGone is what the log shows for a client that left before its answer. It is never sent.
const statusGone = 499

// problem is an RFC 9457 body.
type problem struct {
	Type       string   `json:"type"`
	Title      string   `json:"title"`
	Status     int      `json:"status"`
	Detail     string   `json:"detail,omitempty"`
	Violated   []string `json:"violated-policies,omitempty"` //nolint:tagliatelle // registered so
	Limit      *int64   `json:"limit,omitempty"`
	Remaining  *int64   `json:"remaining,omitempty"`
	RetryAfter int64    `json:"retry_after,omitempty"`
	TraceID    string   `json:"trace_id,omitempty"`
}

// errPanic stands for a bug of ours; the cause is in the log.
var errPanic = errors.New("the gateway failed at this request")

// notAdmittedError is a decision that ends a request.
type notAdmittedError struct{ decision *admit.Decision }

func (e notAdmittedError) Error() string {
	if e.decision.Cause != nil {
		return e.decision.Answer.String() + ": " + e.decision.Cause.Error()
	}
	return e.decision.Answer.String()
}

// statusOf is the one table from an error to what a client is told; the error itself goes to the log. What is not listed is 500.
func statusOf(err error) (status int, detail string) {
	for _, row := range []struct {
		err    error
		status int
	}{
		{identity.ErrWrongCredential, http.StatusUnauthorized},
		{identity.ErrNoCredential, http.StatusUnauthorized},
		{policy.ErrMissing, http.StatusUnauthorized},
		{policy.ErrCost, http.StatusBadRequest},
		{errBlocked, http.StatusForbidden},
		{proxy.ErrPath, http.StatusBadRequest},
		{proxy.ErrNoRoute, http.StatusNotFound},
		{proxy.ErrTooLarge, http.StatusRequestEntityTooLarge},
		{proxy.ErrSlowBody, http.StatusRequestTimeout},
		{proxy.ErrBody, http.StatusBadRequest},
		{proxy.ErrUpstreamTimeout, http.StatusGatewayTimeout},
		{proxy.ErrUpstream, http.StatusBadGateway},
	} {
		if errors.Is(err, row.err) {
			return row.status, row.err.Error()
		}
	}
	return http.StatusInternalServerError, errPanic.Error()
}

// fail writes the answer to a request that ended with err. It is Echo's error handler, and the only place that writes one.
func (g *Gateway) fail(err error, c echo.Context) {
	x := exchangeOf(c)
	if x == nil || x.answer.status != 0 {
		return
	}
	x.err = err
	if lost := context.Cause(c.Request().Context()); errors.Is(lost, admit.ErrSlotsLost) {
		err = notAdmittedError{&admit.Decision{Answer: admit.Refused, Cause: lost}}
	} else if lost != nil {
		x.answer.status = statusGone
		return
	}
	header := c.Response().Header()
	p := problem{Type: "about:blank", TraceID: x.traceID}
	if stop, ok := errors.AsType[notAdmittedError](err); ok {
		g.explain(&p, stop.decision)
	} else if !g.stranger(&p, err) {
		p.Status, p.Detail = statusOf(err)
		p.Title = http.StatusText(p.Status)
	}
	if p.RetryAfter > 0 {
		header.Set("Retry-After", strconv.FormatInt(p.RetryAfter, 10))
	}
	if p.Status == http.StatusUnauthorized {
		header["Www-Authenticate"] = g.identity.Challenges(err)
	}
	x.failed = p.Status
	header.Set("Cache-Control", "no-store")
	if wantsGRPC(c.Request()) {
		x.failGRPC(c.Request().Header.Get("Content-Type"), p)
		return
	}
	header.Set("Content-Type", "application/problem+json")
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // a struct of texts and numbers
	}
	header.Set("Content-Length", strconv.Itoa(len(body)+1)) // HEAD hears of it, too
	x.answer.WriteHeader(p.Status)
	if c.Request().Method != http.MethodHead {
		_, _ = x.answer.Write(append(body, '\n')) // the client may be gone
	}
}

// explain fills p for a denied or refused request.
func (g *Gateway) explain(p *problem, d *admit.Decision) {
	if d.Answer != admit.Denied {
		p.Type, p.Title, p.Status = typeCapacity, "Temporarily reduced capacity", http.StatusServiceUnavailable
		p.Detail = "Limits cannot be checked at the moment. Try again in a moment."
		if errors.Is(d.Cause, errQueueFull) || errors.Is(d.Cause, errDraining) {
			p.Detail = "The request cannot wait here until its turn comes. Try again in a moment."
		}
		p.RetryAfter = g.fields.Load().retryAfter(limit.MicrosPerSecond)
		return
	}
	p.Type, p.Title, p.Status = typeQuota, "Quota exceeded", http.StatusTooManyRequests
	for _, r := range d.Reports {
		if r.Violated {
			p.Violated = append(p.Violated, r.Policy.Name)
		}
	}
	if d.Banned {
		p.Type, p.Title = typeAbuse, "Banned"
	}
	one := tightest(d.Reports)
	capacity, remaining := int64(one.Limit.Capacity), int64(one.Remaining)
	p.Limit, p.Remaining = &capacity, &remaining
	p.RetryAfter = g.fields.Load().retryAfter(d.RetryIn)
	p.Detail = fmt.Sprintf("Limit %s: %s. Try again in %s.", one.Policy.Name, one.Rate(), inSeconds(p.RetryAfter))
	if d.Banned {
		p.Detail = fmt.Sprintf("Limit %s: %s was run into too often. Try again in %s.", one.Policy.Name, one.Rate(), inSeconds(p.RetryAfter))
	}
}

func inSeconds(n int64) string {
	if n == 1 {
		return "1 second"
	}
	return strconv.FormatInt(n, 10) + " seconds"
}

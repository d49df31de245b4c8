package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/policy"
)

// ErrNotReady is the answer while the allocator has not loaded its documents or its journal yet.
var ErrNotReady = errors.New("the allocator is not ready yet; see /readyz for what it waits for")

// The refusals of the API. Their texts are for the client.
var (
	errUnauthenticated = errors.New("send the header Authorization: Bearer TOKEN with a known token")
	errForbidden       = errors.New("this credential's role does not allow that; ask an operator")
	errTooManyFailures = errors.New("too many wrong tokens from this address; try again later")
	errNoPrecondition  = errors.New("send the header If-Match with the ETag of GET /admin/v1/policies (the first time: If-None-Match: *)")
	errMediaType       = errors.New("send the header Content-Type with a type that this path reads")
	errTooLarge        = errors.New("the body is too large")
	errBadRequest      = errors.New("the request cannot be read")
	errUnknownPolicy   = errors.New("there is no such policy; GET /admin/v1/policies has their names")
	errInvalid         = errors.New("the policy document has errors; nothing was changed")
	errOutcomeUnknown  = errors.New("the document store did not say whether the change was stored; read the document again")
	errStoreOut        = errors.New("the document store does not answer; try again when NATS is back")
	errLessorOut       = errors.New("the pools could not be read; try again")
)

// statuses is the one table from error to status. The first that matches decides.
var statuses = []struct { //nolint:gochecknoglobals // a table that nothing changes
	err    error
	status int
}{
	{errUnauthenticated, http.StatusUnauthorized},
	{errForbidden, http.StatusForbidden},
	{errTooManyFailures, http.StatusTooManyRequests},
	{errNoPrecondition, http.StatusPreconditionRequired},
	{errMediaType, http.StatusUnsupportedMediaType},
	{errTooLarge, http.StatusRequestEntityTooLarge},
	{errBadRequest, http.StatusBadRequest},
	{errUnknownPolicy, http.StatusNotFound},
	{errInvalid, http.StatusUnprocessableEntity},
	{policy.ErrMissing, http.StatusUnprocessableEntity},
	{policy.ErrCost, http.StatusUnprocessableEntity},
	{bus.ErrNoDocument, http.StatusNotFound},
	{bus.ErrStale, http.StatusPreconditionFailed},
	{ErrNotReady, http.StatusServiceUnavailable},
	{errOutcomeUnknown, http.StatusServiceUnavailable},
	{errStoreOut, http.StatusServiceUnavailable},
	{errLessorOut, http.StatusServiceUnavailable},
	{context.DeadlineExceeded, http.StatusServiceUnavailable},
	{context.Canceled, http.StatusServiceUnavailable},
	{errPanic, http.StatusInternalServerError},
}

// refusal is what a handler returns where the client should read more than the sentinel's text. Cause is for the log only.
type refusal struct {
	kind   error
	detail string
	cause  error
}

func (r *refusal) Error() string {
	if r.cause != nil {
		return r.kind.Error() + ": " + r.cause.Error()
	}
	return r.kind.Error() + ": " + r.detail
}

// Unwrap gives the kind only: a cause that has a status of its own must not decide.
func (r *refusal) Unwrap() error { return r.kind }

func badRequest(format string, args ...any) error {
	return &refusal{kind: errBadRequest, detail: fmt.Sprintf(format, args...)}
}

// because keeps an error that the client can use as it is, and gives any other the text of kind, with itself for the log.
func because(kind, err error) error {
	for _, plain := range []error{bus.ErrNoDocument, bus.ErrStale, ErrNotReady} {
		if errors.Is(err, plain) {
			return err
		}
	}
	return &refusal{kind: kind, detail: kind.Error(), cause: err}
}

type tooManyFailuresError struct{ wait time.Duration }

func (e *tooManyFailuresError) Error() string { return errTooManyFailures.Error() }
func (e *tooManyFailuresError) Unwrap() error { return errTooManyFailures }

type invalidError struct{ problems policy.Problems }

func (e *invalidError) Error() string { return errInvalid.Error() }
func (e *invalidError) Unwrap() error { return errInvalid }

// Problem is the body of every answer that refuses (RFC 9457).
type Problem struct {
	Type    string          `json:"type"`
	Title   string          `json:"title"`
	Status  int             `json:"status"`
	Detail  string          `json:"detail"`
	TraceID string          `json:"trace_id,omitempty"`
	Errors  policy.Problems `json:"errors,omitempty"`
}

// describe turns an error into what the client reads. An error that is in no table is our own failure, and only the log
// hears its text.
func describe(err error) Problem {
	var echoErr *echo.HTTPError
	var invalid *invalidError
	p := Problem{Type: "about:blank", Status: http.StatusInternalServerError, Detail: "internal error; the allocator's log has the cause"}
	switch {
	case errors.As(err, &invalid):
		p.Status, p.Detail, p.Errors = http.StatusUnprocessableEntity, errInvalid.Error(), invalid.problems
	case errors.As(err, &echoErr):
		p.Status, p.Detail = echoErr.Code, http.StatusText(echoErr.Code)
	default:
		for _, row := range statuses {
			if errors.Is(err, row.err) {
				p.Status = row.status
				if row.status != http.StatusInternalServerError {
					p.Detail = row.err.Error()
				}
				break
			}
		}
		if said, ok := errors.AsType[*refusal](err); ok {
			p.Detail = said.detail
		}
	}
	p.Title = http.StatusText(p.Status)
	return p
}

// writeProblem is echo's error handler: the one place that writes a refusal.
func (s *Server) writeProblem(err error, c echo.Context) {
	ctx := c.Request().Context()
	p := describe(err)
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		p.TraceID = span.TraceID().String()
	}
	if p.Status >= http.StatusInternalServerError {
		s.cfg.Log.ErrorContext(ctx, "admin request failed",
			"method", c.Request().Method, "route", c.Path(), "status", p.Status, "error", err.Error())
	}
	if c.Response().Committed {
		return
	}
	header := c.Response().Header()
	var blocked *tooManyFailuresError
	switch {
	case errors.As(err, &blocked):
		header.Set("Retry-After", strconv.FormatInt(wholeSeconds(blocked.wait), 10))
	case p.Status == http.StatusUnauthorized:
		header.Set(echo.HeaderWWWAuthenticate, `Bearer realm="annona admin"`)
	}
	body, err := json.Marshal(p)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "admin problem not written", "error", err)
		return
	}
	if err := c.Blob(p.Status, "application/problem+json", append(body, '\n')); err != nil {
		s.cfg.Log.DebugContext(ctx, "admin answer not delivered", "error", err)
	}
}

package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/policy"
)

// exchange is one request with its answer, as far as it came.
type exchange struct {
	answer    *answer
	start     time.Time
	requestID string
	traceID   string
	client    identity.Client
	id        policy.Identity
	path      string
	target    *proxy.Target
	decision  *admit.Decision
	forwarded bool   // the upstream was asked
	let       func() // lets go of what watches over the request; nil where nothing does
	err       error

	failed     int    // the status of a problem, also where the answer has another
	grpcStatus string // of an answer to gRPC
}

const exchangeKey = "annona.exchange"

func exchangeOf(c echo.Context) *exchange {
	x, _ := c.Get(exchangeKey).(*exchange)
	return x
}

// pipeline is the path of a request, in its order.
func (g *Gateway) pipeline() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = g.fail
	e.Pre(g.observe, g.recover, g.nameRequest) // a request that panics shows in trace and log, too
	e.Use(g.identify, g.normalise, g.admit)
	e.Use(func(echo.HandlerFunc) echo.HandlerFunc { return g.forward }) // the routes are ours, Echo has none
	return e
}

// recover turns a panic of ours into a 500. One that aborts an answer on purpose goes on.
func (g *Gateway) recover(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(cause)
			}
			g.telemetry.Log.ErrorContext(c.Request().Context(), "panic at a request; please report it",
				"cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
			g.fail(errPanic, c)
		}()
		return next(c)
	}
}

// observe begins the request's span and ends it with what came of it, which also goes to the access log. The trace of a trusted
// proxy goes on; nobody else decides about ours.
func (g *Gateway) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		g.inFlight.count.Add(1)
		defer g.inFlight.count.Add(-1)
		r := c.Request()
		client := g.addresses.Client(r)
		ctx, span := g.telemetry.Tracer.Start(callersTrace(r, client), "request", trace.WithSpanKind(trace.SpanKindServer))
		x := &exchange{start: time.Now(), client: client, answer: &answer{ResponseWriter: c.Response().Writer}}
		if span.SpanContext().HasTraceID() {
			x.traceID = span.SpanContext().TraceID().String()
		}
		if r.ProtoMajor > 1 {
			x.answer.write = g.patience.write
		}
		x.answer.before = func(header http.Header) { g.complete(header, r, x) }
		c.Response().Writer = x.answer
		r, done := hurry(x.answer.ResponseWriter, r, g.patience)
		c.SetRequest(r.WithContext(ctx))
		c.Set(exchangeKey, x)
		defer func() { g.finish(ctx, span, c, x) }()
		if err := next(c); err != nil {
			g.fail(err, c)
		}
		if x.answer.status == statusGone {
			panic(http.ErrAbortHandler) // to return is to answer 200, and the client may have closed one half only
		}
		done()
		return nil
	}
}

// complete sets our fields on an answer that is about to leave, whoever made it.
func (g *Gateway) complete(header http.Header, r *http.Request, x *exchange) {
	header.Set(echo.HeaderXRequestID, x.requestID)
	g.fields.Load().apply(header, x.decision)
	g.cross(header, r, x)
	if closes(r) || g.draining.Load() {
		header.Set("Connection", "close")
	}
}

func (g *Gateway) finish(ctx context.Context, span trace.Span, c echo.Context, x *exchange) {
	x.settle()
	outcome, route := "none", ""
	var names []string
	if x.decision != nil {
		outcome = x.decision.Answer.String()
		for _, r := range x.decision.Reports {
			names = append(names, r.Policy.Name)
		}
	}
	if x.target != nil {
		route = x.target.Name
	}
	span.SetAttributes(attribute.String("http.route", route), attribute.Int("http.response.status_code", x.answer.status),
		attribute.String("annona.outcome", outcome), attribute.StringSlice("annona.policies", names))
	if x.decision != nil && x.decision.Degraded != "" {
		span.SetAttributes(attribute.String("annona.degraded", x.decision.Degraded))
	}
	if x.err != nil && max(x.answer.status, x.failed) >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, x.err.Error())
	}
	span.End()
	if g.config.AccessLog != asLog {
		return
	}
	fields := []any{
		"method", c.Request().Method, "route", route, "status", x.answer.status, "outcome", outcome, "policies", names,
		"duration_ms", float64(time.Since(x.start).Microseconds()) / 1e3, "request_id", x.requestID,
	}
	if x.decision != nil && x.decision.Degraded != "" {
		fields = append(fields, "degraded", x.decision.Degraded)
	}
	if x.grpcStatus != "" {
		fields = append(fields, "grpc_status", x.grpcStatus)
	}
	if x.err != nil && max(x.answer.status, x.failed) >= http.StatusInternalServerError {
		fields = append(fields, "error", x.err.Error())
	}
	g.telemetry.Log.InfoContext(ctx, "request", fields...)
}

// nameRequest gives the request an id, its own if that is fit to be written into logs.
func (g *Gateway) nameRequest(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(echo.HeaderXRequestID)
		if !fitRequestID(id) {
			id = rand.Text()
		}
		c.Request().Header.Set(echo.HeaderXRequestID, id)
		exchangeOf(c).requestID = id
		return next(c)
	}
}

func fitRequestID(id string) bool {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
	return id != "" && len(id) <= 64 && strings.Trim(id, alphabet) == ""
}

// normalise finds the one path that is matched and forwarded, and where it leads.
func (g *Gateway) normalise(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		x, r := exchangeOf(c), c.Request()
		var err error
		if x.path, err = proxy.Normalise(r.URL); err != nil {
			return err
		}
		if x.target, err = g.proxy.Route(r.Host, x.path); err != nil {
			return err
		}
		if err = x.target.Check(r); err != nil {
			return err
		}
		return next(c)
	}
}

func (g *Gateway) admit(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		x, r := exchangeOf(c), c.Request()
		asked := &policy.Request{
			Identity: x.id, Method: r.Method, Host: r.Host, Path: x.path, Query: r.URL.RawQuery, Header: r.Header,
			Route: x.target.Name, Region: g.config.Region, At: x.start, TrustedPeer: x.client.Trusted,
		}
		g.admitter.StripCosts(r.Header, asked.TrustedPeer)
		d, err := g.admitter.Decide(r.Context(), asked)
		if err != nil {
			return err
		}
		if d.Answer != admit.Admitted && g.admitter.Shadow() {
			d = admit.Decision{Answer: admit.Admitted, Hold: d.Hold} // the red button, whatever is out
		}
		x.decision = &d
		if d.Answer != admit.Admitted {
			return notAdmittedError{&d}
		}
		if d.Hold != nil {
			ctx, cancel := context.WithCancelCause(r.Context())
			x.let = func() { cancel(nil) }
			d.Hold.OnLost(func() { cancel(admit.ErrSlotsLost) })
			r = r.WithContext(ctx)
			c.SetRequest(r)
			if err := g.turn(r, x); err != nil {
				return err
			}
		}
		return next(c)
	}
}

// forward carries the request, in a span of its own: what an upstream takes is not the gateway's time.
func (g *Gateway) forward(c echo.Context) error {
	x, r := exchangeOf(c), c.Request()
	x.forwarded = true
	ctx, span := g.telemetry.Tracer.Start(r.Context(), "upstream", trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	err := x.target.Serve(x.answer, r.WithContext(ctx), x.path, x.id)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

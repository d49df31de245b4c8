package gateway

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

const (
	// maxCheckBody bounds a body of the check API.
	maxCheckBody = 1 << 20
	// maxCheckName bounds users and tiers, as the file of API keys does.
	maxCheckName = 256
)

//go:embed openapi.json
var openAPI []byte

// The refusals of the check API. Their texts are for the client; they never quote a body, which names somebody's client.
var (
	errCheckCredential = errors.New("send the header Authorization: Bearer TOKEN with a token of check.credentials")
	errCheckBody       = errors.New("the body cannot be read")
	errCheckTooLarge   = fmt.Errorf("the body is larger than %d bytes", maxCheckBody)
	errCheckPath       = errors.New("there is no such path here; GET /v1/openapi.json describes those that are")
	errCheckMethod     = errors.New("this path has another method; GET /v1/openapi.json describes it")
	errCouldNotCheck   = errors.New("limits cannot be checked at the moment; try again in a moment")
)

// checkStatus is the one table from a refusal to its status.
func checkStatus(err error) int {
	for _, row := range []struct {
		err    error
		status int
	}{
		{errCheckCredential, http.StatusUnauthorized},
		{errCheckTooLarge, http.StatusRequestEntityTooLarge},
		{errCheckBody, http.StatusBadRequest},
		{policy.ErrMissing, http.StatusBadRequest},
		{policy.ErrCost, http.StatusBadRequest},
		{proxy.ErrPath, http.StatusBadRequest},
		{errCheckPath, http.StatusNotFound},
		{admit.ErrUnknownPolicy, http.StatusNotFound},
		{errUnknownID, http.StatusNotFound},
		{errCheckMethod, http.StatusMethodNotAllowed},
	} {
		if errors.Is(err, row.err) {
			return row.status
		}
	}
	return http.StatusServiceUnavailable
}

// withCheck serves the check API beside the probes. Off loopback it needs credentials, else it is not there.
func (g *Gateway) withCheck(probes http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", probes)
	at, _ := g.adminListener.Addr().(*net.TCPAddr)
	if g.checkers == nil && (at == nil || !at.IP.IsLoopback()) {
		g.telemetry.Log.Info("the check API (/v1/) is not served: admin is off loopback and check.credentials is not set")
		return mux
	}
	for path, methods := range map[string]map[string]checkHandler{
		"/v1/check":        {http.MethodPost: g.check},
		"/v1/usage":        {http.MethodPost: g.usage},
		"/v1/blocks":       {http.MethodGet: g.listBlocks, http.MethodPost: g.block},
		"/v1/blocks/{id}":  {http.MethodDelete: g.unblock},
		"/v1/bans":         {http.MethodGet: g.listBans},
		"/v1/bans/{id}":    {http.MethodDelete: g.unban},
		"/v1/candidates":   {http.MethodGet: g.candidates},
		"/v1/openapi.json": {http.MethodGet: g.describe},
		"/v1/":             nil,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { g.serveCheck(w, r, methods) })
	}
	return mux
}

// checkHandler answers one method of one path; its error is told to the client as a problem.
type checkHandler func(http.ResponseWriter, *http.Request) error

// serveCheck answers a request at a path that has these methods, none where there is no such path.
func (g *Gateway) serveCheck(w http.ResponseWriter, r *http.Request, methods map[string]checkHandler) {
	ctx, span := g.telemetry.Tracer.Start(r.Context(), "check", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	r = r.WithContext(ctx)
	w.Header().Set("Cache-Control", "no-store")
	err := g.checkers.allow(r, g.peerOf(r))
	handle := methods[r.Method]
	switch {
	case err != nil:
	case methods == nil:
		err = errCheckPath
	case handle == nil:
		w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		err = errCheckMethod
	default:
		err = handle(w, r)
	}
	if err != nil {
		g.refuseCheck(w, r, err)
	}
}

// describe answers GET /v1/openapi.json.
func (g *Gateway) describe(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI) // the client may be gone
	return nil
}

func (g *Gateway) check(w http.ResponseWriter, r *http.Request) error {
	var body CheckRequest
	if err := readCheck(w, r, &body); err != nil {
		return err
	}
	query, err := g.queryOf(body)
	if err != nil {
		return err
	}
	decision, judgements, err := g.admitter.Check(r.Context(), query)
	switch {
	case err != nil:
		return err
	case decision.Answer == admit.Refused:
		return fmt.Errorf("%w: %w", errCouldNotCheck, decision.Cause)
	}
	if decision.Degraded != "" {
		w.Header().Set(headerDegraded, decision.Degraded)
	}
	g.answerCheck(r.Context(), w, checkAnswer(decision, judgements, time.Now()))
	return nil
}

func (g *Gateway) usage(w http.ResponseWriter, r *http.Request) error {
	var body UsageRequest
	if err := readCheck(w, r, &body); err != nil {
		return err
	}
	if body.Policy == "" {
		return badCheck("policy is missing; name one")
	}
	id, err := g.identityOf(body.Identity)
	if err != nil {
		return err
	}
	standing, err := g.admitter.Usage(r.Context(), body.Policy, id)
	if err != nil {
		return err
	}
	g.answerCheck(r.Context(), w, usageAnswer(g.config.Region, standing, time.Now()))
	return nil
}

// queryOf turns a body into the same question that a proxied request would be.
func (g *Gateway) queryOf(body CheckRequest) (admit.Query, error) {
	q := admit.Query{Policy: body.Policy, Peek: body.Peek}
	if body.Cost != nil {
		if q.Cost = *body.Cost; q.Cost < 1 || q.Cost > limit.MaxTokens {
			return q, badCheck("cost must be 1 to %d; to look without a charge set peek", limit.MaxTokens)
		}
	}
	id, err := g.identityOf(body.Identity)
	if err != nil {
		return q, err
	}
	call := body.Request
	if call.Method == "" {
		call.Method = http.MethodGet
	}
	if len(call.Method) > 32 || strings.ContainsFunc(call.Method, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return q, badCheck("request.method is none")
	}
	if call.Path == "" {
		call.Path = "/"
	}
	target, err := url.ParseRequestURI(call.Path)
	if err != nil || !strings.HasPrefix(call.Path, "/") {
		return q, badCheck("request.path must be a path as in a request line, such as /v1/items")
	}
	path, err := proxy.Normalise(target)
	if err != nil {
		return q, err
	}
	header := make(http.Header, len(call.Headers))
	for name, value := range call.Headers {
		header.Add(name, value)
	}
	q.Request = &policy.Request{
		Identity: id, Method: call.Method, Host: call.Host, Path: path, Query: target.RawQuery, Header: header,
		Region: g.config.Region, At: time.Now(), TrustedPeer: true, // with its credential, the caller vouches for what it says
	}
	if route, err := g.proxy.Route(call.Host, path); err == nil { // what has no route here may be carried elsewhere
		q.Request.Route = route.Name
	}
	return q, nil
}

// identityOf brings an identity to the form that proxied requests have, so that both spend from the same buckets.
func (g *Gateway) identityOf(body CheckIdentity) (policy.Identity, error) {
	id := policy.Identity{User: body.User, Tier: body.Tier, Claims: body.Claims}
	for name, text := range map[string]string{"user": body.User, "tier": body.Tier} {
		if len(text) > maxCheckName {
			return id, badCheck("identity.%s is longer than %d bytes", name, maxCheckName)
		}
	}
	switch {
	case isSHA256(body.APIKey):
		id.APIKey = strings.ToLower(body.APIKey)
	case body.APIKey != "":
		id.APIKey = identity.Hash(body.APIKey)
	}
	if body.IP != "" {
		addr, err := netip.ParseAddr(body.IP)
		if err != nil {
			return id, badCheck("identity.ip is no IP address")
		}
		id.IP = addr.Unmap().WithZone("")
		id.Network = g.addresses.Network(id.IP)
	}
	if id.Tier == "" && id.User == "" && id.APIKey == "" {
		id.Tier = policy.Anonymous
	}
	return id, nil
}

func isSHA256(text string) bool {
	const digits = "0123456789abcdefABCDEF"
	return len(text) == 64 && strings.Trim(text, digits) == ""
}

func badCheck(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errCheckBody, fmt.Sprintf(format, args...))
}

// readCheck reads a body of exactly one JSON object without unknown fields.
func readCheck(w http.ResponseWriter, r *http.Request, into any) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return badCheck("send JSON, with the header Content-Type: application/json") // which no foreign web page can
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCheckBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return errCheckTooLarge
	}
	if err != nil {
		return badCheck("it ended early")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
		return badCheck("it must be one JSON object")
	}
	if err := decoder.Decode(into); err != nil {
		return badCheck("%s", checkFault(err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return badCheck("it must be one JSON object and nothing more")
	}
	return nil
}

// checkFault says what is wrong with a body without its values, which the library's own texts quote.
func checkFault(err error) string {
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && kind.Field != "" {
		return "the field " + kind.Field + " has a value of another type; GET /v1/openapi.json describes it"
	}
	if strings.HasPrefix(err.Error(), "json: unknown field") {
		return "it has an unknown field; GET /v1/openapi.json describes those that there are"
	}
	return "it is not JSON"
}

func (g *Gateway) answerCheck(ctx context.Context, w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		g.telemetry.Log.DebugContext(ctx, "an answer of the check API could not be written", "error", err)
	}
}

// refuseCheck writes the problem that err is to the client. It is the only place that writes one.
func (g *Gateway) refuseCheck(w http.ResponseWriter, r *http.Request, err error) {
	var p problem
	if !g.stranger(&p, err) {
		p = problem{Type: "about:blank", Status: checkStatus(err), Detail: err.Error()}
		p.Title = http.StatusText(p.Status)
	}
	if span := trace.SpanContextFromContext(r.Context()); span.HasTraceID() {
		p.TraceID = span.TraceID().String()
	}
	header := w.Header()
	switch p.Status {
	case http.StatusUnauthorized:
		header.Set("WWW-Authenticate", `Bearer realm="annona check"`)
	case http.StatusServiceUnavailable:
		g.unanswered.Do(func() { g.telemetry.Log.WarnContext(r.Context(), "a check could not be answered", "error", err) })
		p.Type, p.Title, p.Detail = typeCapacity, "Temporarily reduced capacity", errCouldNotCheck.Error()
		p.RetryAfter = g.fields.Load().retryAfter(limit.MicrosPerSecond)
	}
	if p.RetryAfter > 0 {
		header.Set("Retry-After", strconv.FormatInt(p.RetryAfter, 10))
	}
	header.Set("Content-Type", "application/problem+json")
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // a struct of texts and numbers
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}

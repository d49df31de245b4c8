// Package admin serves the allocator's admin API: policies, regions, leases and the usage of one client, to bearers of a
// credential. It keeps nothing itself: documents are the store's, pools the lessor's; a request that is refused changed nothing.
package admin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"go.opentelemetry.io/otel/trace"

	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// Prefix is where the API begins; nothing under it answers without a credential.
const Prefix = "/admin/v1"

// The bounds of one request; everything but a document is small.
const (
	MaxDocumentBytes = bus.MaxDocument
	maxBodyBytes     = 16 << 10
	requestTimeout   = 5 * time.Second
	pageSize         = 100
	maxDenials       = 50
)

// Documents keeps the policy document with its history. It answers bus.ErrNoDocument and bus.ErrStale; any other error means
// that it could not be asked, and of a Put that the outcome is unknown.
type Documents interface {
	Get(ctx context.Context, name string) (bus.Document, error)
	Put(ctx context.Context, name string, expected uint64, data []byte) (uint64, error)
	History(ctx context.Context, name string) ([]bus.Document, error)
}

// Lessor tells who holds what. Pools returns the first most pools that keep accepts, by policy and key; keep may be called by
// several goroutines.
type Lessor interface {
	Pools(ctx context.Context, keep func(ledger.Pool) bool, most int) ([]lessor.Snapshot, error)
	Pool(ctx context.Context, policy string, key limit.Key) (lessor.Snapshot, bool, error)
	Regions() []lessor.RegionStatus
	Denials(key limit.Key) []lessor.Denial
}

// Config is what the API needs from its start.
type Config struct {
	Log         *slog.Logger
	Tracer      trace.Tracer
	Probes      http.Handler // /healthz, /readyz and /metrics
	Credentials []Credential
	// Current returns the documents in force; either is nil until it was loaded.
	Current func() (*policy.Document, *policy.Regions)
	Secret  *limit.Secret
	Now     func() time.Time
}

// Server is the API. It is an http.Handler; whoever serves it owns the listener and its timeouts.
type Server struct {
	cfg         Config
	echo        *echo.Echo
	credentials atomic.Pointer[[]Credential]
	sources     atomic.Pointer[sources] // nil until Attach
	failures    *failures
}

// New returns the API over cfg.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, echo: echo.New(), failures: newFailures()}
	s.Reload(cfg.Credentials)
	s.echo.HideBanner, s.echo.HidePort = true, true
	s.echo.Logger.SetOutput(io.Discard) // echo's own logger knows no JSON and no trace ids
	s.echo.HTTPErrorHandler = s.writeProblem
	s.echo.Use(s.span, recoverPanics(), bound, s.authenticate)
	s.routes()
	return s
}

// Reload replaces the credentials; requests from then on need one of the new ones.
func (s *Server) Reload(credentials []Credential) { s.credentials.Store(&credentials) }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// Attach gives the API what it asks; until then whatever needs it answers ErrNotReady.
func (s *Server) Attach(documents Documents, lessor Lessor) {
	s.sources.Store(&sources{documents: documents, lessor: lessor})
}

// sources are what a request is answered from.
type sources struct {
	documents Documents
	lessor    Lessor
}

// ask makes a handler of one that needs the sources.
func (s *Server) ask(handle func(echo.Context, *sources) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		if from := s.sources.Load(); from != nil {
			return handle(c, from)
		}
		return ErrNotReady
	}
}

// isPublic tells which routes need no credential.
func isPublic(route string) bool {
	return route == "/" || route == "/healthz" || route == "/readyz" || route == "/metrics"
}

func (s *Server) routes() {
	s.echo.GET("/", index)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		s.echo.GET(path, echo.WrapHandler(s.cfg.Probes))
	}
	api := s.echo.Group(Prefix)
	api.GET("/policies", s.ask(s.getPolicies))
	api.PUT("/policies", s.ask(s.putPolicies), require(Operator))
	api.POST("/policies/validate", s.validatePolicies)
	api.GET("/policies/history", s.ask(s.policiesHistory))
	api.GET("/regions", s.ask(s.getRegions))
	api.GET("/leases", s.ask(s.getLeases))
	api.POST("/usage", s.ask(s.postUsage))
}

const indexText = `Annona allocator: admin API

Every path under /admin/v1 needs "Authorization: Bearer TOKEN" (roles: viewer, support, operator).

GET  /admin/v1/policies            the policy document (YAML, or JSON by Accept), with its ETag
PUT  /admin/v1/policies            replace it (operator; If-Match: the ETag)
POST /admin/v1/policies/validate   say what is wrong with one, change nothing
GET  /admin/v1/policies/history    its revisions
GET  /admin/v1/regions             regions, shares, tokens leased
GET  /admin/v1/leases              who holds what (policy=, region=, key_id=, cursor=)
POST /admin/v1/usage               one client: {"policy": "...", "identity": {"user": "..."}}

Without a credential: GET /healthz, /readyz, /metrics
On the command line: annona admin --help
`

func index(c echo.Context) error {
	return replyBlob(c, echo.MIMETextPlainCharsetUTF8, []byte(indexText))
}

var errPanic = errors.New("the handler panicked")

// recoverPanics turns our own bugs into errors with their stack in the log, for the one place that writes errors.
func recoverPanics() echo.MiddlewareFunc {
	return middleware.RecoverWithConfig(middleware.RecoverConfig{
		DisableStackAll:     true,
		DisableErrorHandler: true,
		LogErrorFunc: func(_ echo.Context, err error, stack []byte) error {
			return errors.Join(errPanic, err, errors.New(string(stack)))
		},
	})
}

// span traces a request, so that its logs and its refusal name the trace. Its name is the route, not the path: a path may hold
// anything.
func (s *Server) span(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx, span := s.cfg.Tracer.Start(c.Request().Context(), "admin "+c.Request().Method+" "+c.Path())
		defer span.End()
		c.SetRequest(c.Request().WithContext(ctx))
		return next(c)
	}
}

// bound gives every request a deadline and a body of bounded size, and keeps answers out of caches.
func bound(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		ctx, cancel := context.WithTimeout(c.Request().Context(), requestTimeout)
		defer cancel()
		r := c.Request().WithContext(ctx)
		r.Body = http.MaxBytesReader(c.Response(), r.Body, MaxDocumentBytes)
		c.SetRequest(r)
		c.Response().Header().Set("Cache-Control", "no-store")
		c.Response().Header().Set("X-Content-Type-Options", "nosniff")
		return next(c)
	}
}

// Package bus connects a role to NATS: the connection with bounded waits, and the documents (policies, regions) in JetStream KV.
//
// A connection never gives up and never buffers: while NATS is out, whatever is published fails at once, and the caller decides
// what that means. What was lost is asked again by the protocols above, which count nothing twice.
package bus

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// dialTimeout bounds one attempt to reach one server.
	dialTimeout = 2 * time.Second
	// reconnectFirst and reconnectMost bound the wait between attempts, which doubles and is jittered, so that a server that
	// comes back does not meet every client at the same instant.
	reconnectFirst = 50 * time.Millisecond
	reconnectMost  = 2 * time.Second
	// pingEvery times pingsLost is how long a connection that says nothing, not even goodbye, counts as up.
	pingEvery = 5 * time.Second
	pingsLost = 2
	// noBuffer makes publishing fail while there is no connection.
	noBuffer = -1
)

// Config says how to reach NATS.
type Config struct {
	URLs        []string `yaml:"urls"`
	Credentials string   `yaml:"credentials"` // file; "" connects without
	Replicas    int      `yaml:"replicas"`    // of the allocator's streams; 0: min(3, servers)
	// Name tells operators whose connection it is; Inbox is the prefix of its reply subjects.
	Name  string `yaml:"-"`
	Inbox string `yaml:"-"`
}

// Connect dials NATS and keeps trying for ever, in the background, when it is out. It fails at once only on a configuration
// that can never work.
func Connect(cfg Config) (*nats.Conn, error) {
	if len(cfg.URLs) == 0 {
		return nil, errors.New("nats.urls is empty; name at least one server, like nats://127.0.0.1:4222")
	}
	options := []nats.Option{
		nats.Name(cfg.Name),
		nats.Timeout(dialTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.ReconnectBufSize(noBuffer),
		nats.PingInterval(pingEvery),
		nats.MaxPingsOutstanding(pingsLost),
		// A credential that is refused may be accepted once its account is known: keep trying, /readyz says so.
		nats.IgnoreAuthErrorAbort(),
	}
	if cfg.Inbox != "" {
		options = append(options, nats.CustomInboxPrefix(cfg.Inbox))
	}
	if cfg.Credentials != "" {
		if _, err := os.Stat(cfg.Credentials); err != nil {
			return nil, fmt.Errorf("nats.credentials: %w", err)
		}
		options = append(options, nats.UserCredentials(cfg.Credentials))
	}
	conn, err := nats.Connect(strings.Join(cfg.URLs, ","), options...)
	if err != nil {
		// The library's message may quote a URL, and a URL may hold a credential.
		return nil, fmt.Errorf("nats.urls or nats.credentials can not be used: %w", redacted(err, cfg.URLs))
	}
	return conn, nil
}

// Status says what is wrong with conn for a readiness probe, nil if it is up.
func Status(conn *nats.Conn) error {
	if conn.IsConnected() {
		return nil
	}
	if err := conn.LastError(); err != nil && !errors.Is(err, nats.ErrReconnectBufExceeded) {
		return fmt.Errorf("NATS is %s: %w", strings.ToLower(conn.Status().String()), redacted(err, conn.Servers()))
	}
	return fmt.Errorf("NATS is %s; see that a server listens where nats.urls says", strings.ToLower(conn.Status().String()))
}

// Replicas calls create with the number of replicas wanted, or, where want is 0, with the most up to three that the servers allow.
// A cluster that is still forming allows fewer than it will: give its number in the configuration.
func Replicas(want int, create func(replicas int) error) error {
	if want > 0 {
		return create(want)
	}
	const most = 3
	var err error
	for replicas := most; replicas > 0; replicas-- {
		if err = create(replicas); !tooManyReplicas(err) {
			return err
		}
	}
	return err
}

// Error codes with which a server says that it has not as many peers as replicas are wanted.
const (
	codeNoPeers     jetstream.ErrorCode = 10005
	codeNotClustred jetstream.ErrorCode = 10074
)

func tooManyReplicas(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == codeNoPeers || api.ErrorCode == codeNotClustred)
}

// reconnectDelay is between half and the whole of a wait that doubles with every attempt, up to reconnectMost.
func reconnectDelay(attempts int) time.Duration {
	const doublings = 10
	wait := min(reconnectFirst<<min(max(attempts-1, 0), doublings), reconnectMost)
	return wait/2 + rand.N(wait/2) //nolint:gosec // spreading clients out needs no secret randomness
}

// redacted hides err's text where it quotes one of urls that holds a credential.
func redacted(err error, urls []string) error {
	for _, url := range urls {
		if _, rest, ok := strings.Cut(url, "://"); ok && strings.Contains(rest, "@") {
			return errors.New("(the reason is hidden, for it may quote a credential from nats.urls; use a credentials file)")
		}
	}
	return err
}

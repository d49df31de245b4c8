package admit

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	// troubleTold is how often one kind of trouble is logged at most: every request meets it.
	troubleTold = 30 * time.Second
	// troubleLasts is how long after a failed take /readyz still tells of it.
	troubleLasts = 10 * time.Second
	// maxTrouble bounds the server's words in log and probe.
	maxTrouble = 200
)

// The reasons that no reply of the server names.
const (
	reasonSilent = "silent" // no connection, or no answer in time; the breaker tells the log
	reasonNotRun = "not_run"
	reasonOther  = "other"
)

// remedies are for the codes of Redis' error replies that an operator can do something about, and for what is no reply.
var remedies = map[string]string{
	reasonNotRun:  "it mends itself within seconds; if it stays, look for writes that Redis refuses and for clocks that step",
	reasonOther:   "see Redis' own log, and that it is Redis 7.0, Valkey 8 or later",
	"OOM":         "raise maxmemory, or give Redis less to hold; keep maxmemory-policy noeviction",
	"MISCONF":     "Redis cannot save its data and refuses writes; see its log and its disk",
	"READONLY":    "this server is a replica; name the master in redis.addrs",
	"NOREPLICAS":  "too few replicas follow this master; see min-replicas-to-write",
	"MASTERDOWN":  "this server is a replica without a master; name the master in redis.addrs",
	"CLUSTERDOWN": "a part of the cluster is out; see CLUSTER INFO",
	"LOADING":     "Redis loads its data and answers when it is done",
	"BUSY":        "another client's script keeps Redis busy; give Annona a Redis of its own",
	"WRONGTYPE":   "something else writes keys that begin with annona:1: there; give Annona a Redis of its own and delete the key",
	"NOPERM":      "give the Redis user ~annona:1:* &annona:1:* +@all -@dangerous +info",
	"NOAUTH":      "set redis.username and redis.password_file",
	"WRONGPASS":   "correct redis.username and redis.password_file",
}

// trouble is what is wrong with a store that is there: it is counted, logged with what to do, and told to probes. A store that
// answers every take with an error looks healthy to a ping.
type trouble struct {
	tel    *telemetry.Telemetry
	region string
	mu     struct {
		sync.Mutex

		told map[string]time.Time // by reason, of which there are few
		last string
		at   time.Time
	}
}

func newTrouble(o Options) *trouble {
	t := &trouble{tel: o.Telemetry, region: o.Region}
	t.mu.told = map[string]time.Time{}
	return t
}

// note takes in the error of a take. A client that left, and a document that is an older one, are no trouble.
func (t *trouble) note(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, bucket.ErrOlderRevision) {
		return
	}
	reason := reasonOf(err)
	t.tel.Metrics.StoreErrors.Add(ctx, 1, metric.WithAttributes(
		telemetry.LabelReason.String(reason), attribute.String("region", t.region)))
	if reason == reasonSilent {
		return
	}
	text := err.Error()
	if len(text) > maxTrouble {
		text = text[:maxTrouble]
	}
	now, remedy := time.Now(), remedies[reason]
	t.mu.Lock()
	if last, told := t.mu.told[reason]; told && now.Sub(last) < troubleTold {
		reason = ""
	} else {
		t.mu.told[reason] = now
	}
	t.mu.last, t.mu.at = text+"; "+remedy, now
	t.mu.Unlock()
	if reason != "" {
		t.tel.Log.WarnContext(ctx, "Redis answers takes with an error; failure modes decide", "reason", reason, "error", text, "remedy", remedy)
	}
}

// Trouble is what Redis answered to a take of the last seconds that it could not be asked, with what to do about it; "" where
// it answered as it should.
func (a *Admitter) Trouble() string {
	t := a.trouble
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.last == "" || time.Since(t.mu.at) > troubleLasts {
		return ""
	}
	return t.mu.last
}

// reasonOf is err as a label: the code of an error reply that is known here, or one of three words.
func reasonOf(err error) string {
	if reply, ok := replyOf(err); ok {
		if code := codeOf(reply); remedies[code] != "" {
			return code
		}
		return reasonOther
	}
	switch {
	case errors.Is(err, bucket.ErrNotRun):
		return reasonNotRun
	case unsent(err), silent(err):
		return reasonSilent
	}
	return reasonOther
}

// replyOf is the server's error reply in err.
func replyOf(err error) (string, bool) {
	reply, ok := errors.AsType[interface {
		error
		RedisError()
	}](err)
	if !ok {
		return "", false
	}
	return reply.Error(), true
}

func codeOf(reply string) string {
	code, _, _ := strings.Cut(reply, " ")
	return code
}

// refusedAtFirst are the errors within a script that come before its first write or are its first write's, so that nothing was
// charged: the server says no to all writes of a script or to none, and the script reads every record before it writes one.
var refusedAtFirst = map[string]bool{"OOM": true, "MISCONF": true, "READONLY": true, "NOREPLICAS": true, "WRONGTYPE": true}

// uncharged tells whether a take that failed surely charged nothing: it was never sent, or the server refused it. An error that
// a script met half way leaves that unknown; a server says of those in which script and line they came.
func uncharged(err error) bool {
	if errors.Is(err, bucket.ErrPartly) {
		return false
	}
	reply, ok := replyOf(err)
	if !ok {
		return unsent(err) || errors.Is(err, bucket.ErrNotRun) || errors.Is(err, bucket.ErrHolderGone)
	}
	return !strings.Contains(reply, "script: ") || refusedAtFirst[codeOf(reply)]
}

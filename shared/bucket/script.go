package bucket

import (
	"context"
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts by SHA-1; nothing is secured by it
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var sources embed.FS

// script is one verb: lua/common.lua, what else it needs, and the verb's own file.
type script struct {
	name, source, sha string
}

func loadScript(name string, needs ...string) *script { return loadWith(name, needs, nil) }

// loadWith loads a verb that may need more. A script makes all its functions anew in every call, which is a third of a take's
// time, and an embedded server reads all of its text anew; so what only some calls need is within a function, more, that makes
// those where it is called and returns what the last file does, and calls that surely do not need it use the script without.
func loadWith(name string, needs, more []string) *script {
	var source strings.Builder
	for _, part := range append([]string{"common"}, needs...) {
		source.WriteString(readSource(part))
	}
	if len(more) > 0 {
		source.WriteString("local function more()\n")
		for _, part := range more {
			source.WriteString(readSource(part))
		}
		source.WriteString("end\n")
	}
	source.WriteString(readSource(name))
	text := inline(source.String())
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return &script{name: name, source: text, sha: hex.EncodeToString(sum[:])}
}

// constant is a Lua constant at the top of a file: an upper-case name for an integer.
var constant = regexp.MustCompile(`(?m)^local ([A-Z_]+) = ([0-9]+)(?: --.*)?$`)

// inline writes constants as the numbers that they are: a function that refers to one would cost a variable more in every call.
func inline(source string) string {
	for _, c := range constant.FindAllStringSubmatch(source, -1) {
		source = strings.Replace(source, c[0], "", 1)
		source = regexp.MustCompile(`\b`+c[1]+`\b`).ReplaceAllString(source, c[2])
	}
	return source
}

func readSource(name string) string {
	text, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // embedded: a misspelt verb does not pass the first test
	}
	return string(text)
}

// counted are the algorithms that count.
var counted = []string{"counted", "window", "log", "slots"}

// The verbs.
var (
	takeScript      = loadScript("take", "limits", "own") // of plain token buckets only
	takeAnyScript   = loadWith("take", []string{"limits", "own"}, slices.Concat(counted, []string{"verbs", "queue", "ban", "special"}))
	viewScript      = loadScript("view")
	askScript       = loadScript("ask")
	fillScript      = loadScript("fill")
	epochScript     = loadScript("epoch", "limits", "counted")
	clockScript     = loadScript("clock")
	tickScript      = loadScript("tick", "limits")
	giveBackScript  = loadScript("giveback", "limits") // to token buckets only
	giveAnyScript   = loadWith("giveback", []string{"limits"}, slices.Concat(counted, []string{"verbs", "give"}))
	dueScript       = loadScript("due")
	scheduleScript  = loadScript("schedule")
	setMirrorScript = loadScript("setmirror")
	registerScript  = loadScript("register")
	gatewaysScript  = loadScript("gateways")
	renewScript     = loadScript("renew", "counted")
	bansScript      = loadScript("bans")
	unbanScript     = loadScript("unban")
	blockScript     = loadScript("block")
	unblockScript   = loadScript("unblock")
)

// call is one call of a script. args[0] is left free for the server id that the call's connection saw.
type call struct {
	shards []int // whose records are the first keys, in order
	keys   []string
	args   []any
	reply  []any
	err    error
}

// pipelined is how many calls go to Redis at once: few enough that a take behind them waits for milliseconds at most.
const pipelined = 128

// eval runs c with EVALSHA. Only NOSCRIPT is tried again, for it says that nothing ran: EVAL loads and calls in one step.
func (l *link) eval(ctx context.Context, sc *script, c *call) {
	c.reply, c.err = l.client.EvalSha(ctx, sc.sha, c.keys, c.args...).Slice()
	if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
		c.reply, c.err = l.client.Eval(ctx, sc.source, c.keys, c.args...).Slice()
	}
}

// evalAll runs calls like eval, pipelined; each has its own outcome.
func (l *link) evalAll(ctx context.Context, sc *script, calls []*call) {
	for len(calls) > 0 {
		now := calls[:min(pipelined, len(calls))]
		calls = calls[len(now):]
		commands := make([]*redis.Cmd, len(now))
		_, err := l.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, c := range now {
				commands[i] = pipe.EvalSha(ctx, sc.sha, c.keys, c.args...)
			}
			return nil
		})
		for i, c := range now {
			c.reply, c.err = commands[i].Slice()
			switch {
			case redis.HasErrorPrefix(c.err, "NOSCRIPT"):
				l.eval(ctx, sc, c)
			case c.err == nil && c.reply == nil:
				c.err = cmpErr(err, errReply)
			}
		}
	}
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// errReply is a reply of another form than the script's header promises: another version's script, or a bug.
var errReply = errors.New("the script's reply has another form than expected; check that all roles run the same version")

// status returns the first integer of a reply.
func status(reply []any) (int64, error) {
	if len(reply) == 0 {
		return 0, errReply
	}
	n, ok := reply[0].(int64)
	if !ok {
		return 0, errReply
	}
	return n, nil
}

// refusal is a shard that needs a new epoch before the script runs: the one whose record holds epoch found, "" for none.
type refusal struct {
	shard  int
	reason string
	found  string
	// Of an epoch that begins for the clock: the tick that was seen, and by how much the clock was seen to step forth.
	tick string
	step int64
}

// errClock: the script's clock is not vouched for (PROTOCOL.md E2); the Ticker's processes bring it in order.
var errClock = fmt.Errorf("%w: the region's Redis has had no tick for 2 s, or its clock has stepped; "+
	"a gateway or agent that runs begins anew within seconds", ErrNotRun)

// refusals reads {-1, position, why, epoch, ...}; nil where the script ran, errClock where no new epoch helps at once.
func (c *call) refusals() ([]refusal, error) {
	if first, err := status(c.reply); err != nil || first != -1 {
		return nil, err
	}
	rest := c.reply[1:]
	if len(rest)%3 != 0 {
		return nil, errReply
	}
	var refused []refusal
	for ; len(rest) > 0; rest = rest[3:] {
		position, ok1 := rest[0].(int64)
		why, ok2 := rest[1].(int64)
		found, ok3 := rest[2].(string)
		if !ok1 || !ok2 || !ok3 || position < 1 || int(position) > len(c.shards) || why < 1 || why > 3 {
			return nil, errReply
		}
		if why == 3 {
			return nil, errClock
		}
		reason := [...]string{"missing", "server"}[why-1]
		refused = append(refused, refusal{shard: c.shards[position-1], reason: reason, found: found})
	}
	return refused, nil
}

// couldNotAsk wraps err once, with the verb that failed.
func couldNotAsk(verb string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrCouldNotAsk, verb, err)
}

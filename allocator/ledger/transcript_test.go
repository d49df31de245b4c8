package ledger

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

var update = flag.Bool("update", false, "write what the ledger answers into testdata/*.txt")

// script runs the transcripts: it holds a ledger, the facts that made it, and what the next command takes from its surroundings.
type script struct {
	ledger  *Ledger
	journal []*factpb.Fact
	at      limit.Micros
	terms   Terms
}

// verbs are the words of the transcripts. Each returns what it has to say; the driver adds the ledger's state.
var verbs = map[string]func(*script, args) string{
	// begin term=t1 [empty] [lost=t0] [at=0s]: a writer's term begins.
	"begin": func(s *script, a args) string {
		s.at = a.span("at", s.at)
		var lost []string
		if a["lost"] != "" {
			lost = []string{a["lost"]}
		}
		_, empty := a["empty"]
		s.apply(s.ledger.Begin(s.at, a["term"], s.terms, empty, lost...))
		return ""
	},
	// numbers cap=100 rate=10 [weights=eu:1,us:2]: what the documents say from here on; rate in tokens a minute.
	"numbers": func(s *script, a args) string {
		s.terms.Pool = limit.Budget{Capacity: limit.Tokens(a.int("cap", 90)), Rate: limit.Rate(a.int("rate", 0)) * limit.MicroPerToken / 60}
		if a["weights"] != "" {
			s.terms.Weights = a.weights()
		}
		return s.terms.Pool.String() + "\n"
	},
	// wait 1s: time passes. A negative one runs the clock back.
	"wait": func(s *script, a args) string {
		s.at += a.span("", 0)
		return "at " + span(s.at) + "\n"
	},
	// ask region=eu seq=1 want=30 …: an item is decided; epoch e1, session 1, applied seq-1, waiting all, cost 1 unless said.
	"ask": (*script).ask,
	// sweep [most=10]
	"sweep": func(s *script, a args) string {
		facts := s.ledger.Sweep(s.at, int(a.int("most", 10)))
		s.apply(facts...)
		return fmt.Sprintf("%d facts\n", len(facts))
	},
	// term name=t1: is it part of this journal?
	"term": func(s *script, a args) string { return fmt.Sprintf("known %v\n", s.ledger.HasTerm(a["name"])) },
}

func (s *script) ask(a args) string {
	seq := a.int("seq", 1)
	want := a.int("want", 0)
	_, draining := a["draining"]
	item := &leasepb.Item{
		Policy: a.text("policy", "api"), Key: []byte(a.text("key", "kkkkkkkkkkkkkkkk")), Variant: a["variant"],
		Session: uint64(a.int("session", 1)), Seq: uint64(seq), Applied: uint64(a.int("applied", seq-1)),
		Spent: a.int("spent", 0), Returned: a.int("returned", 0), Lapsed: a.int("lapsed", 0), Denied: a.int("denied", 0),
		Left: a.int("left", 0), Want: want, Waiting: a.int("waiting", want), Cost: a.int("cost", 1), Draining: draining,
	}
	facts, answer := s.ledger.Decide(Command{
		At: s.at, Region: a.text("region", "eu"), Epoch: a.text("epoch", "e1"), Item: item, Terms: s.terms,
	})
	s.apply(facts...)
	if answer.GetRefusal() != 0 {
		return fmt.Sprintf("refused: %s, %d facts\n", strings.TrimPrefix(answer.GetRefusal().String(), "REFUSAL_"), len(facts))
	}
	text := fmt.Sprintf("granted %d for %s, pool level %d", answer.GetGranted(), span(limit.Micros(answer.GetTtlUs())), answer.GetPoolLevel())
	if dry := answer.GetDryForUs(); dry > 0 {
		text += ", dry for " + span(limit.Micros(dry))
	}
	return fmt.Sprintf("%s; %d facts\n", text, len(facts))
}

func (s *script) apply(facts ...*factpb.Fact) {
	for _, fact := range facts {
		s.journal = append(s.journal, proto.CloneOf(fact))
		s.ledger.Apply(fact)
	}
}

// args are a command's words: name=value, a bare word for a flag, and one without a name under "".
type args map[string]string

func (a args) text(name, otherwise string) string {
	if a[name] == "" {
		return otherwise
	}
	return a[name]
}

func (a args) int(name string, otherwise int64) int64 {
	n, err := strconv.ParseInt(a[name], 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

func (a args) span(name string, otherwise limit.Micros) limit.Micros {
	d, err := time.ParseDuration(a[name])
	if err != nil {
		return otherwise
	}
	return limit.Micros(d.Microseconds())
}

func (a args) weights() map[string]uint64 {
	weights := map[string]uint64{}
	for pair := range strings.SplitSeq(a["weights"], ",") {
		name, weight, _ := strings.Cut(pair, ":")
		n, _ := strconv.ParseUint(weight, 10, 64)
		weights[name] = n
	}
	return weights
}

// run executes one command line.
func (s *script) run(t *testing.T, line string) string {
	words := strings.Fields(line)
	a := args{}
	for _, word := range words[1:] {
		name, value, named := strings.Cut(word, "=")
		if !named && words[0] == "wait" {
			name, value = "", word
		}
		a[name] = value
	}
	verb := verbs[words[0]]
	if verb == nil {
		t.Fatalf("no verb %q in %q", words[0], line)
	}
	before := s.ledger.String()
	said := verb(s, a)
	state := s.ledger.String()
	if state == before {
		return said
	}
	if words[0] != "begin" { // its clock and regions are of interest there only
		pools := strings.Index(state+"pool ", "pool ")
		state = state[min(pools, len(state)):]
	}
	return said + state
}

// TestTranscripts plays testdata/*.txt: comments, a command, ----, and what the ledger says, up to an empty line. At the end of
// each the facts must add up to the same ledger.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatalf("transcripts: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { transcript(t, file) })
	}
}

func transcript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{ledger: New(), terms: Terms{
		Pool: limit.Budget{Capacity: 90}, Weights: map[string]uint64{"ap": 1, "eu": 1, "us": 1},
		TTL: 10 * limit.MicrosPerSecond, Margin: 3_100_000, DriftPPM: 10_000,
	}}
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		command, want, _ := strings.Cut(block+"\n", "----\n")
		got := ""
		for line := range strings.SplitSeq(strings.TrimSpace(command), "\n") {
			if !strings.HasPrefix(line, "#") && line != "" {
				got += s.run(t, line)
			}
		}
		if got != want && !*update {
			t.Errorf("%s:\n%s----\n%swant\n%s", file, command, got, want)
		}
		fmt.Fprintf(&out, "%s\n----\n%s\n", strings.TrimSpace(command), got)
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.TrimSpace(out.String())+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	twin := New()
	for _, fact := range s.journal {
		twin.Apply(fact)
	}
	if !reflect.DeepEqual(twin, s.ledger) {
		t.Errorf("%s: the facts add up to\n%s\nwant\n%s", file, twin, s.ledger)
	}
}

package lease

import (
	"errors"
	"fmt"

	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// What a message may hold. Everything that a message makes anyone remember, add or wait for has a bound here.
const (
	// MaxAmount bounds amounts of tokens: no limit is larger (DESIGN.md 3).
	MaxAmount = 1_000_000_000_000
	// MaxCount bounds counters, numbers of sessions and answers, and instants: what a script counts exactly. Cumulative
	// counters outgrow any one limit.
	MaxCount = 1 << 53
	// MaxDuration bounds durations: some eleven days.
	MaxDuration limit.Micros = 1_000_000_000_000
	// MaxName bounds the names of policies, variants, epochs, terms, agents and fingerprints.
	MaxName = 160
	// MaxSealed bounds a sealed identity.
	MaxSealed = 1024
	// MaxTrace bounds a trace context; the one version there is has 55 characters.
	MaxTrace = 64
	// MaxReason bounds the words in which a whole envelope is refused.
	MaxReason = 512
	// MaxRegions is how many regions an answer may tell of.
	MaxRegions = 64
)

// CheckEnvelope says what is wrong with an envelope that came on subject, nil if nothing. Nothing may be decided about an
// envelope that fails it.
func CheckEnvelope(e *leasepb.Envelope, subject string) error {
	region, shard, ok := ParseSubject(subject)
	if !ok {
		return fmt.Errorf("subject %q is not annona.lease.REGION.SHARD", subject)
	}
	if err := CheckRegionName(e.GetRegion()); err != nil {
		return err
	}
	var c checks
	c.thatf(e.GetProto() == Proto, "proto %d; this side speaks %d", e.GetProto(), Proto)
	c.thatf(e.GetRegion() == region, "region %s came on the subject of region %s", e.GetRegion(), region)
	c.thatf(int64(e.GetShard()) == int64(shard), "shard %d came on the subject of shard %d", e.GetShard(), shard)
	c.thatf(len(e.GetItems()) <= MaxItems, "%d items; send at most %d", len(e.GetItems()), MaxItems)
	c.thatf(len(e.GetItems()) == 0 || e.GetEpoch() != "", "items without an epoch")
	c.name("epoch", e.GetEpoch())
	c.name("agent", e.GetAgent())
	c.name("fingerprint", e.GetFingerprint())
	c.name("term", e.GetTerm())
	c.count("stand_count", e.GetStandCount())
	c.count("contact", e.GetContact())
	c.count("sequence", e.GetSequence())
	c.amount("contact_age_us", e.GetContactAgeUs(), int64(MaxDuration))
	c.amount("patience_us", e.GetPatienceUs(), int64(MaxDuration))
	c.amount("stood_until_us", e.GetStoodUntilUs(), MaxCount)
	if c.err != nil {
		return fmt.Errorf("envelope: %w", c.err)
	}
	return checkItems(e.GetItems())
}

func checkItems(items []*leasepb.Item) error {
	seen := make(map[string]bool, len(items))
	for i, item := range items {
		if err := CheckItem(item); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
		about := id(item)
		if seen[about] {
			return fmt.Errorf("item %d: policy %s and key %x stand twice; send one item for each", i, item.GetPolicy(), item.GetKey())
		}
		seen[about] = true
	}
	return nil
}

// CheckItem says what is wrong with one item, nil if nothing.
func CheckItem(item *leasepb.Item) error {
	if item == nil {
		return errors.New("there is none")
	}
	var c checks
	c.thatf(item.GetPolicy() != "", "no policy")
	c.name("policy", item.GetPolicy())
	c.name("variant", item.GetVariant())
	c.thatf(len(item.GetKey()) == limit.KeySize, "a key of %d bytes; it has %d", len(item.GetKey()), limit.KeySize)
	c.thatf(len(item.GetSealed()) <= MaxSealed, "a sealed identity of %d bytes; it has at most %d", len(item.GetSealed()), MaxSealed)
	c.thatf(len(item.GetTraceparent()) <= MaxTrace, "a traceparent of %d bytes; it has at most %d", len(item.GetTraceparent()), MaxTrace)
	c.count("revision", item.GetRevision())
	c.count("session", item.GetSession())
	c.count("seq", item.GetSeq())
	c.thatf(item.GetApplied() < item.GetSeq(), "applied %d; it is below seq %d", item.GetApplied(), item.GetSeq())
	c.amount("window", item.GetWindow(), MaxCount)
	c.amount("spent", item.GetSpent(), MaxCount)
	c.amount("returned", item.GetReturned(), MaxCount)
	c.amount("lapsed", item.GetLapsed(), MaxCount)
	c.amount("denied", item.GetDenied(), MaxCount)
	c.amount("left", item.GetLeft(), MaxAmount)
	c.amount("want", item.GetWant(), MaxAmount)
	c.amount("waiting", item.GetWaiting(), item.GetWant())
	c.amount("cost", item.GetCost(), MaxAmount)
	c.amount("demand", item.GetDemand(), MaxAmount)
	c.thatf(item.GetCost() > 0 || item.GetWant() == 0, "want %d without a cost", item.GetWant())
	return c.err
}

// CheckReply says what is wrong with r as the reply to asked, nil if nothing. It answers every item once, or refuses all.
func CheckReply(r *leasepb.Reply, asked *leasepb.Envelope) error {
	var c checks
	c.thatf(r.GetProto() == Proto, "proto %d; this side speaks %d", r.GetProto(), Proto)
	c.name("term", r.GetTerm())
	c.count("sequence", r.GetSequence())
	c.count("contact", r.GetContact())
	c.thatf(len(r.GetRefused()) <= MaxReason, "%d bytes of reason; they are at most %d", len(r.GetRefused()), MaxReason)
	c.thatf(r.GetRefused() != "" || r.GetTerm() != "", "answers without a term")
	want := len(asked.GetItems())
	if r.GetRefused() != "" {
		want = 0
	}
	c.thatf(len(r.GetAnswers()) == want, "%d answers; %d were due", len(r.GetAnswers()), want)
	c.regions(r.GetRegions())
	if c.err != nil {
		return fmt.Errorf("reply: %w", c.err)
	}
	items := make(map[string]*leasepb.Item, want)
	for _, item := range asked.GetItems() {
		items[id(item)] = item
	}
	for i, answer := range r.GetAnswers() {
		item := items[id(answer)]
		if item == nil {
			return fmt.Errorf("reply: answer %d: nothing was asked about policy %s and key %x, or it is answered twice",
				i, answer.GetPolicy(), answer.GetKey())
		}
		delete(items, id(answer))
		if err := checkAnswer(answer, item); err != nil {
			return fmt.Errorf("reply: answer %d: %w", i, err)
		}
	}
	return nil
}

func checkAnswer(a *leasepb.Answer, item *leasepb.Item) error {
	var c checks
	c.thatf(a.GetSession() == item.GetSession() && a.GetSeq() == item.GetSeq() && a.GetWindow() == item.GetWindow(),
		"it names session %d seq %d window %d; asked was %d, %d, %d",
		a.GetSession(), a.GetSeq(), a.GetWindow(), item.GetSession(), item.GetSeq(), item.GetWindow())
	c.amount("granted", a.GetGranted(), MaxAmount)
	c.amount("ttl_us", a.GetTtlUs(), int64(MaxDuration))
	c.amount("dry_for_us", a.GetDryForUs(), int64(MaxDuration))
	c.amount("fits_in_us", a.GetFitsInUs(), int64(MaxDuration))
	c.amount("pool_level", a.GetPoolLevel(), MaxAmount)
	c.thatf(a.GetGranted() == 0 || a.GetTtlUs() > 0, "granted %d without a ttl", a.GetGranted())
	c.thatf(a.GetRefusal() == leasepb.Refusal_REFUSAL_UNSPECIFIED || a.GetGranted() == 0 && a.GetTtlUs() == 0, "refused, and granted or renewed")
	return c.err
}

// id names what an item or its answer is about.
func id(about interface {
	GetPolicy() string
	GetKey() []byte
}) string {
	return string(about.GetKey()) + about.GetPolicy()
}

// checks keeps the first thing found wrong.
type checks struct{ err error }

func (c *checks) thatf(good bool, format string, args ...any) {
	if !good && c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checks) name(field, name string) {
	c.thatf(len(name) <= MaxName, "%s has %d bytes; it has at most %d", field, len(name), MaxName)
}

func (c *checks) count(field string, n uint64) {
	c.thatf(n <= MaxCount, "%s %d; it is at most %d", field, n, uint64(MaxCount))
}

func (c *checks) amount(field string, n, most int64) {
	c.thatf(n >= 0 && n <= most, "%s %d; it is 0 to %d", field, n, most)
}

func (c *checks) regions(r *leasepb.Regions) {
	c.thatf(len(r.GetRegions()) <= MaxRegions, "%d regions; they are at most %d", len(r.GetRegions()), MaxRegions)
	for _, region := range r.GetRegions() {
		if err := CheckRegionName(region.GetName()); err != nil && c.err == nil {
			c.err = err
		}
		c.thatf(region.GetWeight() <= MaxCount, "weight %d of region %s", region.GetWeight(), region.GetName())
	}
	c.count("regions revision", r.GetRevision())
	c.amount("contact_us", r.GetContactUs(), int64(MaxDuration))
	c.amount("ttl_us", r.GetTtlUs(), int64(MaxDuration))
	c.amount("margin_us", r.GetMarginUs(), int64(MaxDuration))
	c.amount("drift_ppm", r.GetDriftPpm(), limit.Whole)
	c.amount("standing_for_us", r.GetStandingForUs(), MaxCount)
	c.amount("demoted_for_us", r.GetDemotedForUs(), int64(MaxDuration))
}

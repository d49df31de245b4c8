package lease

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

// TestCheckEnvelope_RefusesWhatIsOutOfBounds changes one thing in a good envelope at a time.
func TestCheckEnvelope_RefusesWhatIsOutOfBounds(t *testing.T) {
	const subject = "annona.lease.us-east-1.31"
	long := strings.Repeat("x", MaxName+1)
	item := func(change func(*leasepb.Item)) func(*leasepb.Envelope) {
		return func(e *leasepb.Envelope) { change(e.GetItems()[0]) }
	}
	for what, change := range map[string]func(*leasepb.Envelope){
		"proto":                     func(e *leasepb.Envelope) { e.Proto = 2 },
		"region":                    func(e *leasepb.Envelope) { e.Region = "US" },
		"is not annona.lease":       nil,
		"on the subject of region":  func(e *leasepb.Envelope) { e.Region = "eu" },
		"on the subject of shard":   func(e *leasepb.Envelope) { e.Shard = 30 },
		"without an epoch":          func(e *leasepb.Envelope) { e.Epoch = "" },
		"epoch has":                 func(e *leasepb.Envelope) { e.Epoch = long },
		"agent has":                 func(e *leasepb.Envelope) { e.Agent = long },
		"fingerprint has":           func(e *leasepb.Envelope) { e.Fingerprint = long },
		"term has":                  func(e *leasepb.Envelope) { e.Term = long },
		"stand_count":               func(e *leasepb.Envelope) { e.StandCount = MaxCount + 1 },
		"contact 1":                 func(e *leasepb.Envelope) { e.Contact = 1 << 60 },
		"sequence":                  func(e *leasepb.Envelope) { e.Sequence = MaxCount + 1 },
		"contact_age_us":            func(e *leasepb.Envelope) { e.ContactAgeUs = -1 },
		"patience_us":               func(e *leasepb.Envelope) { e.PatienceUs = int64(MaxDuration) + 1 },
		"stood_until_us":            func(e *leasepb.Envelope) { e.StoodUntilUs = -1 },
		"513 items":                 func(e *leasepb.Envelope) { e.Items = make([]*leasepb.Item, MaxItems+1) },
		"there is none":             func(e *leasepb.Envelope) { e.Items[1] = nil },
		"stand twice":               func(e *leasepb.Envelope) { e.Items = append(e.Items, e.GetItems()[0]) },
		"no policy":                 item(func(i *leasepb.Item) { i.Policy = "" }),
		"policy has":                item(func(i *leasepb.Item) { i.Policy = long }),
		"variant has":               item(func(i *leasepb.Item) { i.Variant = long }),
		"a key of 15 bytes":         item(func(i *leasepb.Item) { i.Key = i.GetKey()[:15] }),
		"a sealed identity of":      item(func(i *leasepb.Item) { i.Sealed = make([]byte, MaxSealed+1) }),
		"a traceparent of":          item(func(i *leasepb.Item) { i.Traceparent = strings.Repeat("0", MaxTrace+1) }),
		"revision":                  item(func(i *leasepb.Item) { i.Revision = MaxCount + 1 }),
		"session":                   item(func(i *leasepb.Item) { i.Session = MaxCount + 1 }),
		"seq 9007199254740993":      item(func(i *leasepb.Item) { i.Seq = MaxCount + 1 }),
		"below seq":                 item(func(i *leasepb.Item) { i.Applied = i.GetSeq() }),
		"window":                    item(func(i *leasepb.Item) { i.Window = -1 }),
		"spent":                     item(func(i *leasepb.Item) { i.Spent = MaxCount + 1 }),
		"returned":                  item(func(i *leasepb.Item) { i.Returned = -1 }),
		"lapsed":                    item(func(i *leasepb.Item) { i.Lapsed = -1 }),
		"denied":                    item(func(i *leasepb.Item) { i.Denied = -1 }),
		"left":                      item(func(i *leasepb.Item) { i.Left = MaxAmount + 1 }),
		"want 1000000000001":        item(func(i *leasepb.Item) { i.Want = MaxAmount + 1 }),
		"waiting":                   item(func(i *leasepb.Item) { i.Waiting = i.GetWant() + 1 }),
		"cost -1":                   item(func(i *leasepb.Item) { i.Cost = -1 }),
		"demand":                    item(func(i *leasepb.Item) { i.Demand = -1 }),
		"without a cost":            item(func(i *leasepb.Item) { i.Cost = 0 }),
		"policy all and key 666564": func(e *leasepb.Envelope) { e.Items = append(e.Items, e.GetItems()[1]) },
	} {
		t.Run(what, func(t *testing.T) {
			e, on := envelope(t, "envelope_full"), subject
			if change == nil {
				on = "annona.ping.us-east-1.31"
			} else {
				change(e)
			}
			if err := CheckEnvelope(e, on); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("CheckEnvelope = %v, want one about %q", err, what)
			}
			if _, err := EncodeEnvelope(e); change != nil && !strings.Contains(what, "subject") && err == nil {
				t.Error("EncodeEnvelope writes it nevertheless")
			}
		})
	}
}

// TestCheckReply_RefusesWhatDoesNotAnswer changes one thing in a good reply at a time.
func TestCheckReply_RefusesWhatDoesNotAnswer(t *testing.T) {
	answer := func(change func(*leasepb.Answer)) func(*leasepb.Reply) {
		return func(r *leasepb.Reply) { change(r.GetAnswers()[0]) }
	}
	for what, change := range map[string]func(*leasepb.Reply){
		"proto":                    func(r *leasepb.Reply) { r.Proto = 0 },
		"without a term":           func(r *leasepb.Reply) { r.Term = "" },
		"term has":                 func(r *leasepb.Reply) { r.Term = strings.Repeat("t", MaxName+1) },
		"sequence":                 func(r *leasepb.Reply) { r.Sequence = MaxCount + 1 },
		"contact 9007199254740993": func(r *leasepb.Reply) { r.Contact = MaxCount + 1 },
		"bytes of reason":          func(r *leasepb.Reply) { r.Refused = strings.Repeat("r", MaxReason+1) },
		"2 answers; 0":             func(r *leasepb.Reply) { r.Refused = "no" },
		"1 answers; 2":             func(r *leasepb.Reply) { r.Answers = r.GetAnswers()[:1] },
		"65 regions":               func(r *leasepb.Reply) { r.Regions.Regions = make([]*leasepb.Region, MaxRegions+1) },
		"region name":              func(r *leasepb.Reply) { r.Regions.Regions[0].Name = "e.u" },
		"weight":                   func(r *leasepb.Reply) { r.Regions.Regions[0].Weight = MaxCount + 1 },
		"ttl_us -1":                func(r *leasepb.Reply) { r.Regions.TtlUs = -1 },
		"drift_ppm":                func(r *leasepb.Reply) { r.Regions.DriftPpm = 2_000_000 },
		"nothing was asked":        answer(func(a *leasepb.Answer) { a.Policy = "other" }),
		"answered twice":           func(r *leasepb.Reply) { r.Answers[1] = r.GetAnswers()[0] },
		"it names session 3":       answer(func(a *leasepb.Answer) { a.Session = 3 }),
		"seq 20":                   answer(func(a *leasepb.Answer) { a.Seq = 20 }),
		"window 0;":                answer(func(a *leasepb.Answer) { a.Window = 0 }),
		"granted -1":               answer(func(a *leasepb.Answer) { a.Granted = -1 }),
		"ttl_us 1000000000001":     answer(func(a *leasepb.Answer) { a.TtlUs = int64(MaxDuration) + 1 }),
		"dry_for_us":               answer(func(a *leasepb.Answer) { a.DryForUs = -1 }),
		"pool_level":               answer(func(a *leasepb.Answer) { a.PoolLevel = -1 }),
		"without a ttl":            answer(func(a *leasepb.Answer) { a.TtlUs = 0 }),
		"refused, and granted":     answer(func(a *leasepb.Answer) { a.Refusal = leasepb.Refusal_REFUSAL_BUSY }),
	} {
		t.Run(what, func(t *testing.T) {
			r, asked := reply(t, "reply_answers"), envelope(t, "envelope_full")
			change(r)
			if err := CheckReply(r, asked); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("CheckReply = %v, want one about %q", err, what)
			}
		})
	}
}

// TestCheck_RefusesNothing: a missing message is no message.
func TestCheck_RefusesNothing(t *testing.T) {
	if CheckEnvelope(nil, "annona.lease.eu.0") == nil || CheckItem(nil) == nil || CheckReply(nil, nil) == nil {
		t.Error("nothing passes as something")
	}
}

// TestSubjects: what one end names, the other end reads.
func TestSubjects(t *testing.T) {
	for got, want := range map[string]string{
		LeaseSubject("eu", 3): "annona.lease.eu.3", WriterSubject(3): "annona.lease.*.3", PingSubject("eu", 31): "annona.ping.eu.31",
		RecallSubject("eu"): "annona.recall.eu", JournalSubject(0): "annona.journal.0", InboxPrefix("eu"): "_INBOX.eu",
	} {
		if got != want {
			t.Errorf("subject %s, want %s", got, want)
		}
	}
	if region, shard, ok := ParseSubject("annona.lease.eu.3"); region != "eu" || shard != 3 || !ok {
		t.Errorf("ParseSubject = %q, %d, %v", region, shard, ok)
	}
	for _, subject := range []string{"", "annona.lease.eu", "annona.lease.eu.x", "annona.lease.eu.-1", "annona.lease.eu.03", "annona.lease.eu.3.4",
		"annona.ping.eu.3", "other.lease.eu.3", "annona.lease.eu.99999999999999999999"} {
		if _, _, ok := ParseSubject(subject); ok {
			t.Errorf("ParseSubject(%q) accepts it", subject)
		}
	}
}

// TestCheckRegionName: names are parts of subjects, so nothing in one may have a meaning there.
func TestCheckRegionName(t *testing.T) {
	for name, good := range map[string]bool{
		"eu": true, "us-east-1": true, strings.Repeat("a", MaxRegionName): true,
		"": false, "EU": false, "e.u": false, "*": false, ">": false, "e u": false, "é": false, strings.Repeat("a", MaxRegionName+1): false,
	} {
		if err := CheckRegionName(name); (err == nil) != good {
			t.Errorf("CheckRegionName(%q) = %v, want good %v", name, err, good)
		}
	}
}

// TestKeyOf returns the bytes as the key they are.
func TestKeyOf(t *testing.T) {
	item := envelope(t, "envelope_first").GetItems()[0]
	if got := KeyOf(item).String(); got != "000102030405060708090a0b0c0d0e0f" {
		t.Errorf("KeyOf = %s", got)
	}
}

// TestEncodeReply_RefusesWhatIsNoReply: the allocator does not send what no agent would take.
func TestEncodeReply_RefusesWhatIsNoReply(t *testing.T) {
	r := reply(t, "reply_answers")
	r.Answers = nil
	if _, err := EncodeReply(r, envelope(t, "envelope_full")); err == nil {
		t.Error("a reply without answers was written")
	}
	if data, _ := proto.Marshal(r); len(data) > 0 {
		if _, err := DecodeReply(data, envelope(t, "envelope_full")); err == nil {
			t.Error("a reply without answers was read")
		}
	}
	if _, err := DecodeReply([]byte{0xff}, nil); err == nil {
		t.Error("garbage was read")
	}
}

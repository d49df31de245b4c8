package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/annona-gateway/annona/shared/limit"
)

func threeRegions() *Regions {
	return &Regions{
		Revision: 7, Shards: DefaultShards, Times: DefaultTimes(),
		Regions: []Region{{Name: "us", Weight: 2}, {Name: "eu", Weight: 1}, {Name: "ap", Weight: 1}},
	}
}

// PROTOCOL.md D: the default times, and the margin that follows from them.
func TestDefaultTimes(t *testing.T) {
	times := DefaultTimes()
	if want := 2*time.Second + time.Second + 100*time.Millisecond; times.Margin != want {
		t.Errorf("margin %s, want %s", times.Margin, want)
	}
	if standing := times.Contact/2 + times.Contact + times.TTL + times.Margin; standing != 17_600*time.Millisecond {
		t.Errorf("standing wait %s, want 17.6s", standing)
	}
	if err := threeRegions().Check(); err != nil {
		t.Errorf("Check of the defaults: %v", err)
	}
}

func TestRegionsRoundTrip(t *testing.T) {
	r := threeRegions()
	data, err := EncodeRegions(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRegions(data)
	if err != nil {
		t.Fatal(err)
	}
	want := threeRegions()
	want.Regions = []Region{{Name: "ap", Weight: 1}, {Name: "eu", Weight: 1}, {Name: "us", Weight: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("DecodeRegions (-want +got):\n%s", diff)
	}
	if r.Regions[0].Name != "us" {
		t.Error("EncodeRegions sorted its argument")
	}
	r.Regions[0], r.Regions[2] = r.Regions[2], r.Regions[0]
	if again, _ := EncodeRegions(r); string(again) != string(data) {
		t.Error("the order of regions changes the document")
	}
}

func TestRegionsRefused(t *testing.T) {
	for want, change := range map[string]func(*Regions){
		"regions: 0 given":                       func(r *Regions) { r.Regions = nil },
		"regions: 65 given":                      func(r *Regions) { r.Regions = make([]Region, MaxRegions+1) },
		"the name is empty":                      func(r *Regions) { r.Regions[0].Name = "" },
		"the name eu.west has the character '.'": func(r *Regions) { r.Regions[0].Name = "eu.west" },
		`the name * has the character '*'`:       func(r *Regions) { r.Regions[0].Name = "*" },
		"longer than 64":                         func(r *Regions) { r.Regions[0].Name = strings.Repeat("a", 65) },
		"region eu stands twice":                 func(r *Regions) { r.Regions[0].Name = "eu" },
		"region us: weight 0":                    func(r *Regions) { r.Regions[0].Weight = 0 },
		"region us: weight 10000001":             func(r *Regions) { r.Regions[0].Weight = MaxWeight + 1 },
		"shards: 0":                              func(r *Regions) { r.Shards = 0 },
		"shards: 1025":                           func(r *Regions) { r.Shards = 1025 },
		"times.contact 0s":                       func(r *Regions) { r.Times.Contact = 0 },
		"times.ttl 1h0m0s":                       func(r *Regions) { r.Times.TTL = time.Hour },
		"times.drift_ppm 100001":                 func(r *Regions) { r.Times.DriftPPM = 100_001 },
		"times.margin -1ns":                      func(r *Regions) { r.Times.Margin = -1 },
		"times.demoted_for 25h0m0s":              func(r *Regions) { r.Times.DemotedFor = 25 * time.Hour },
		"times.standing_for -1ns":                func(r *Regions) { r.Times.StandingFor = -1 },
	} {
		r := threeRegions()
		change(r)
		err := r.Check()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check = %v, want %q", err, want)
		}
		data, _ := EncodeRegions(r)
		if got, err := DecodeRegions(data); err == nil {
			t.Errorf("DecodeRegions = %v, want %q", got, want)
		}
	}
	if _, err := DecodeRegions([]byte(`{"regions": 1}`)); err == nil || !strings.Contains(err.Error(), "regions document") {
		t.Errorf("DecodeRegions of nonsense = %v", err)
	}
}

func TestRegionsSplit(t *testing.T) {
	p := mustParse(t, policyWith("burst: 200")).Policies[0]
	want := limit.Split{AllotmentPPM: limit.Whole / 10, Cost: 1, Weights: map[string]uint64{"us": 2, "eu": 1, "ap": 1}}
	if diff := cmp.Diff(want, threeRegions().Split(p)); diff != "" {
		t.Errorf("Split (-want +got):\n%s", diff)
	}
}

func TestRegionsSplitAddsUp(t *testing.T) {
	p := mustParse(t, policyWith("burst: 200")).Policies[0]
	split := threeRegions().Split(p)
	sum := split.Pool(p.Budget)
	for region, capacity := range map[string]limit.Tokens{"us": 10, "eu": 5, "ap": 5} {
		part := split.Allotment(p.Budget, region)
		if part.Capacity != capacity {
			t.Errorf("allotment of %s is %d tokens, want %d", region, part.Capacity, capacity)
		}
		sum.Capacity += part.Capacity
		sum.Rate += part.Rate
	}
	if sum != p.Budget {
		t.Errorf("parts add up to %s, want %s", sum, p.Budget)
	}
}

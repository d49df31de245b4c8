package limit

import (
	"testing"
	"time"
	_ "time/tzdata" // the tests' zones are those of the program

	"pgregory.net/rapid"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loaded, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func must(t testing.TB, w Window, err error) Window {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestWindowsOfTheCalendar goes over the days on which clocks change and the ends of months: each row is an instant, the window
// that it is in, and how many hours that has.
func TestWindowsOfTheCalendar(t *testing.T) {
	for what, row := range map[string]struct {
		zone            string
		unit            Unit
		anchor          int
		at, start, next string
	}{
		"Rome, a plain day":                    {"Europe/Rome", Day, 0, "2026-01-15T12:00:00Z", "2026-01-14T23:00:00Z", "2026-01-15T23:00:00Z"},
		"Rome, the last µs of a day":           {"Europe/Rome", Day, 0, "2026-01-15T22:59:59.999999Z", "2026-01-14T23:00:00Z", "2026-01-15T23:00:00Z"},
		"Rome, the first of the next":          {"Europe/Rome", Day, 0, "2026-01-15T23:00:00Z", "2026-01-15T23:00:00Z", "2026-01-16T23:00:00Z"},
		"Rome, 23 hours":                       {"Europe/Rome", Day, 0, "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		"Rome, 25 hours":                       {"Europe/Rome", Day, 0, "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		"Rome, a week with 23 hours":           {"Europe/Rome", Week, int(time.Monday), "2026-03-25T12:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z"},
		"Rome, a week from Sunday":             {"Europe/Rome", Week, int(time.Sunday), "2026-03-28T22:59:59Z", "2026-03-21T23:00:00Z", "2026-03-28T23:00:00Z"},
		"Rome, a week over the year's end":     {"Europe/Rome", Week, int(time.Monday), "2027-01-01T12:00:00Z", "2026-12-27T23:00:00Z", "2027-01-03T23:00:00Z"},
		"Rome, October":                        {"Europe/Rome", Month, 1, "2026-10-31T22:59:59Z", "2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"},
		"Rome, February of a leap year":        {"Europe/Rome", Month, 1, "2028-02-29T12:00:00Z", "2028-01-31T23:00:00Z", "2028-02-29T23:00:00Z"},
		"Rome, from the 28th":                  {"Europe/Rome", Month, 28, "2026-02-27T12:00:00Z", "2026-01-27T23:00:00Z", "2026-02-27T23:00:00Z"},
		"Rome, from the 15th, over the year":   {"Europe/Rome", Month, 15, "2027-01-14T22:59:59Z", "2026-12-14T23:00:00Z", "2027-01-14T23:00:00Z"},
		"New York, 23 hours":                   {"America/New_York", Day, 0, "2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"},
		"New York, 25 hours":                   {"America/New_York", Day, 0, "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		"New York, the second 01:30":           {"America/New_York", Day, 0, "2026-11-01T06:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		"New York, November":                   {"America/New_York", Month, 1, "2026-11-01T04:00:00Z", "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z"},
		"Kolkata, half an hour off":            {"Asia/Kolkata", Day, 0, "2026-06-30T18:29:59Z", "2026-06-29T18:30:00Z", "2026-06-30T18:30:00Z"},
		"Kolkata, June":                        {"Asia/Kolkata", Month, 1, "2026-06-30T18:29:59Z", "2026-05-31T18:30:00Z", "2026-06-30T18:30:00Z"},
		"Apia, before the day that was not":    {"Pacific/Apia", Day, 0, "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		"Apia, after the day that was not":     {"Pacific/Apia", Day, 0, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		"Apia, a month of 30 days":             {"Pacific/Apia", Month, 1, "2011-12-31T09:59:59Z", "2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z"},
		"Apia, a week of six days":             {"Pacific/Apia", Week, int(time.Friday), "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2012-01-05T10:00:00Z"},
		"Apia, 25 hours":                       {"Pacific/Apia", Day, 0, "2012-04-01T00:00:00Z", "2012-03-31T10:00:00Z", "2012-04-01T11:00:00Z"},
		"Apia, 23 hours":                       {"Pacific/Apia", Day, 0, "2012-09-29T20:00:00Z", "2012-09-29T11:00:00Z", "2012-09-30T10:00:00Z"},
		"Lord Howe, half an hour more":         {"Australia/Lord_Howe", Day, 0, "2026-04-04T20:00:00Z", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z"},
		"Lord Howe, half an hour less":         {"Australia/Lord_Howe", Day, 0, "2026-10-03T20:00:00Z", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z"},
		"Beirut, where midnight is skipped":    {"Asia/Beirut", Day, 0, "2026-03-28T22:00:00Z", "2026-03-28T22:00:00Z", "2026-03-29T21:00:00Z"},
		"Havana, where midnight comes twice":   {"America/Havana", Day, 0, "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		"St John's, back into the day before":  {"America/St_Johns", Day, 0, "2010-11-07T02:45:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},
		"São Paulo, before the day's first":    {"America/Sao_Paulo", Day, 0, "2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"},
		"Kwajalein, a week that was cut short": {"Pacific/Kwajalein", Week, int(time.Sunday), "1993-08-21T11:59:59Z", "1993-08-15T12:00:00Z", "1993-08-21T12:00:00Z"},
	} {
		w := calendar(t, row.unit, zone(t, row.zone), row.anchor)
		at, start, next := instant(t, row.at), instant(t, row.start), instant(t, row.next)
		if got := w.Start(at); !got.Equal(start) {
			t.Errorf("%s: Start(%s) = %s, want %s", what, row.at, got.Format(time.RFC3339), row.start)
		}
		if got := w.Next(at); !got.Equal(next) {
			t.Errorf("%s: Next(%s) = %s, want %s", what, row.at, got.Format(time.RFC3339), row.next)
		}
	}
}

func calendar(t testing.TB, unit Unit, zone *time.Location, anchor int) Window {
	t.Helper()
	switch unit {
	case Day:
		return Days(zone)
	case Week:
		return Weeks(zone, time.Weekday(anchor))
	default:
		w, err := Months(zone, anchor)
		return must(t, w, err)
	}
}

// TestCase18_ADailyQuotaResetsOnceAtTheZonesMidnight goes through a year of hours: on each date of the zone, days on which the
// clocks change included, exactly one window begins, at 00:00.
func TestCase18_ADailyQuotaResetsOnceAtTheZonesMidnight(t *testing.T) {
	for _, name := range []string{"Europe/Rome", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Australia/Lord_Howe"} {
		w := Days(zone(t, name))
		from := time.Date(2026, 1, 1, 0, 0, 0, 0, zone(t, name))
		resets := map[string]int{}
		last := w.Start(from)
		for at := from; at.Year() < 2027; at = at.Add(15 * time.Minute) {
			start := w.Start(at)
			if start.Equal(last) {
				continue
			}
			if local := start.In(from.Location()); local.Hour()+local.Minute()+local.Second() != 0 {
				t.Errorf("%s: a day resets at %s", name, local)
			}
			if !start.Equal(at) {
				t.Errorf("%s: the day that began at %s is seen at %s", name, start, at)
			}
			resets[start.In(from.Location()).Format(time.DateOnly)]++
			last = start
		}
		if len(resets) != 364 {
			t.Errorf("%s: the quota was reset on %d days after the first, want 364", name, len(resets))
		}
		for day, times := range resets {
			if times != 1 {
				t.Errorf("%s: the quota was reset %d times on %s", name, times, day)
			}
		}
	}
}

// TestMonthsBeginOnTheirAnchor: in every zone a month begins on its day, 12 times a year, at the day's first instant.
func TestMonthsBeginOnTheirAnchor(t *testing.T) {
	for _, name := range []string{"Europe/Rome", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Australia/Lord_Howe"} {
		in := zone(t, name)
		for anchor := 1; anchor <= MaxAnchor; anchor++ {
			w := calendar(t, Month, in, anchor)
			begun := 0
			for at := w.Next(time.Date(2026, 12, 31, 12, 0, 0, 0, in)); at.In(in).Year() < 2029; at = w.Next(at) {
				if local := at.In(in); local.Day() != anchor || local.Hour()+local.Minute()+local.Second() != 0 || !Days(in).Start(at).Equal(at) {
					t.Errorf("%s, anchor %d: a month begins %s", name, anchor, local)
				}
				begun++
			}
			if begun != 24 {
				t.Errorf("%s, anchor %d: %d months begin in two years, want 24", name, anchor, begun)
			}
		}
	}
}

// zones have had every oddity that there is: dates skipped and put twice, clocks put back over midnight, half hours.
var zones = []string{
	"UTC", "Europe/Rome", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Australia/Lord_Howe", "America/St_Johns", "America/Havana",
	"Asia/Beirut", "America/Sao_Paulo", "Pacific/Kwajalein", "Antarctica/Troll", "Africa/Casablanca", "Pacific/Kiritimati", "Africa/Monrovia",
}

func anyWindow(t *rapid.T) Window {
	in, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(t, "zone"))
	if err != nil {
		t.Fatal(err)
	}
	switch rapid.SampledFrom([]Unit{Fixed, Day, Week, Month}).Draw(t, "unit") {
	case Day:
		return Days(in)
	case Week:
		return Weeks(in, time.Weekday(rapid.IntRange(0, 6).Draw(t, "first")))
	case Month:
		w, err := Months(in, rapid.IntRange(1, MaxAnchor).Draw(t, "anchor"))
		if err != nil {
			t.Fatal(err)
		}
		return w
	default:
		w, err := Every(time.Duration(rapid.Int64Range(MinWindow.Microseconds(), MaxWindow.Microseconds()).Draw(t, "length")) * time.Microsecond)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
}

func anyInstant(t *rapid.T) time.Time {
	const last = 4_102_444_800 // 2100
	return time.UnixMicro(rapid.Int64Range(0, last*MicrosPerSecond).Draw(t, "at")).UTC()
}

// TestWindow_EveryInstantIsInExactlyOne: starts strictly increase, each is in the window that it starts, the microsecond before
// the next is too, the next is not; no window is longer than Longest.
func TestWindow_EveryInstantIsInExactlyOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, at := anyWindow(t), anyInstant(t)
		start, next := w.Start(at), w.Next(at)
		if start.After(at) || !next.After(at) {
			t.Fatalf("%s: %s is not in %s to %s", w, at, start, next)
		}
		for _, within := range []time.Time{start, next.Add(-time.Microsecond)} {
			if !w.Start(within).Equal(start) || !w.Next(within).Equal(next) {
				t.Fatalf("%s: %s is in %s to %s, not in %s to %s", w, within, w.Start(within), w.Next(within), start, next)
			}
		}
		if !w.Start(next).Equal(next) {
			t.Fatalf("%s: the window at %s begins at %s", w, next, w.Start(next))
		}
		if length := next.Sub(start).Microseconds(); length <= 0 || Micros(length) > w.Longest() {
			t.Fatalf("%s: the window from %s to %s is longer than %d µs", w, start, next, w.Longest())
		}
		if w.Unit() == Fixed && (next.Sub(start).Microseconds() != int64(w.Length()) || start.UnixMicro()%int64(w.Length()) != 0) {
			t.Fatalf("%s: the window from %s to %s is not aligned", w, start, next)
		}
	})
}

// TestWindow_IsTheDumbTwin looks at the zone's clocks every 30 seconds: a day begins when they first show its date or a later.
func TestWindow_IsTheDumbTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		w, at := Days(in), anyInstant(t)
		latest, start := "", time.Time{}
		for look := at.Truncate(30 * time.Second).Add(-72 * time.Hour); !look.After(at); look = look.Add(30 * time.Second) {
			if date := look.In(in).Format(time.DateOnly); date > latest {
				latest, start = date, look
			}
		}
		if got := w.Start(at); !got.Equal(start) {
			t.Fatalf("%s: Start(%s) = %s, want %s", w, at, got, start)
		}
	})
}

// TestWindow_NominalLengths: what headers call a window's length does not depend on the clocks that were changed in it.
func TestWindow_NominalLengths(t *testing.T) {
	rome := zone(t, "Europe/Rome")
	for at, days := range map[string]int64{"2026-03-29T12:00:00Z": 31, "2026-02-14T12:00:00Z": 28, "2028-02-14T12:00:00Z": 29, "2026-02-28T23:30:00Z": 31} {
		month := calendar(t, Month, rome, 1)
		if got := month.Seconds(instant(t, at)); got != days*86400 {
			t.Errorf("the month of %s has %d seconds, want %d days", at, got, days)
		}
		if day, week := Days(rome).Seconds(instant(t, at)), Weeks(rome, time.Monday).Seconds(instant(t, at)); day != 86400 || week != 7*86400 {
			t.Errorf("at %s a day has %d seconds and a week %d", at, day, week)
		}
	}
	for length, seconds := range map[time.Duration]int64{time.Minute: 60, time.Millisecond: 1, 1500 * time.Millisecond: 2, MaxWindow: 366 * 86400} {
		w, err := Every(length)
		if got := must(t, w, err).Seconds(time.Time{}); got != seconds {
			t.Errorf("%s has %d seconds, want %d", length, got, seconds)
		}
	}
}

func TestWindowsThatCannotBe(t *testing.T) {
	for _, length := range []time.Duration{-time.Hour, 0, time.Microsecond, time.Millisecond - 1, time.Millisecond + 1, MaxWindow + 1, 1 << 62} {
		if w, err := Every(length); err == nil || !w.IsZero() {
			t.Errorf("Every(%s) = %s, %v, want an error", length, w, err)
		}
	}
	for _, anchor := range []int{-1, 0, 29, 30, 31, 1 << 40} {
		if w, err := Months(time.UTC, anchor); err == nil || !w.IsZero() {
			t.Errorf("Months(UTC, %d) = %s, %v, want an error", anchor, w, err)
		}
	}
}

// TestWindow_DifferentOnesHaveDifferentTexts, for a bucket's key is made of them.
func TestWindow_DifferentOnesHaveDifferentTexts(t *testing.T) {
	seen := map[string]bool{}
	minute, err := Every(time.Minute)
	windows := []Window{must(t, minute, err), Days(nil)}
	second, err := Every(time.Second)
	windows = append(windows, must(t, second, err))
	for _, in := range []string{"Europe/Rome", "Asia/Kolkata"} {
		windows = append(windows, Days(zone(t, in)))
		for anchor := 1; anchor <= MaxAnchor; anchor++ {
			windows = append(windows, calendar(t, Month, zone(t, in), anchor))
		}
		for day := time.Sunday; day <= time.Saturday; day++ {
			windows = append(windows, Weeks(zone(t, in), day))
		}
	}
	for i, w := range windows {
		if seen[w.String()] {
			t.Errorf("two windows are called %s", w)
		}
		seen[w.String()] = true
		for j, v := range windows {
			if w.Equal(v) != (i == j) {
				t.Errorf("%s and %s are equal: %t", w, v, w.Equal(v))
			}
		}
	}
	// Whoever loads a zone again gets another pointer.
	if again := Days(zone(t, "Europe/Rome")); !again.Equal(Days(zone(t, "Europe/Rome"))) {
		t.Error("the days of one zone, loaded twice, are not equal")
	}
}

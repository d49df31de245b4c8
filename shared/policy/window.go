package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

const (
	windowRemedy   = "write a duration such as 1h, 90s or 720h, or day, week or month of the calendar"
	timezoneRemedy = "write a name of the time zone database, such as Europe/Rome, America/New_York or UTC"
)

// calendarUnits are the words for windows of the calendar.
var calendarUnits = map[string]limit.Unit{"day": limit.Day, "week": limit.Week, "month": limit.Month}

// weekdays are the words for the first day of a week.
var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// window reads what divides time. All of it is one thing, of which a field alone says little.
func (r *reader) window(p draft) {
	n := p.found["window"]
	if n == nil || !p.Algorithm.Windowed() {
		return
	}
	text, ok := r.text(n, windowRemedy)
	if !ok {
		return
	}
	unit, calendar := calendarUnits[text]
	switch {
	case calendar && p.Algorithm != limit.FixedWindow:
		r.refuse(n, faultf(fmt.Sprintf("write %s, or algorithm: fixed_window", map[limit.Unit]string{
			limit.Day: "24h", limit.Week: "168h", limit.Month: "720h"}[unit]),
			"%s slides over the last so much time, and a %s of the calendar has no one length", p.Algorithm, text))
	case calendar:
		p.Window = r.calendar(p, unit)
	default:
		p.Window = valueOf(r, n, text, parseWindow)
		for _, name := range []string{"timezone", "anchor"} {
			if other := p.found[name]; other != nil && p.Algorithm == limit.FixedWindow {
				r.refuseName(other, faultf("remove it, or write window: day, week or month",
					"%s is for windows of the calendar, and this one is a length of time", name))
			}
		}
	}
}

// parseWindow reads a window of a fixed length.
func parseWindow(text string) (limit.Window, *fault) {
	length, err := time.ParseDuration(text)
	if err == nil && strings.Trim(text, "0") == "" { // 0 goes without a unit
		err = strconv.ErrSyntax
	}
	if err != nil {
		return limit.Window{}, faultf(windowMeant(text), "%s is no window", shown(text))
	}
	w, err := limit.Every(length)
	if err != nil {
		return limit.Window{}, faultf("write a window from 1ms to 366 days (8784h), in whole microseconds", "the window %s is out of range", shown(text))
	}
	return w, nil
}

// windowMeant guesses what somebody wanted who wrote no window.
func windowMeant(text string) string {
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := strings.ToLower(strings.TrimSuffix(text[len(number):], "s"))
	count, err := strconv.Atoi(strings.TrimSpace(number))
	if number == "" {
		count, err = 1, nil
	}
	if err != nil || count < 1 || count > 10_000 {
		return windowRemedy
	}
	hours := func(each int, word string) string {
		if word != "" && count == 1 {
			return fmt.Sprintf("write %s for the calendar's, or %dh for any %d hours", word, each, each)
		}
		return fmt.Sprintf("write %dh", count*each)
	}
	switch unit {
	case "":
		return fmt.Sprintf("write the unit too, such as %ds", count)
	case "sec", "second":
		return fmt.Sprintf("write %ds", count)
	case "min", "minute":
		return fmt.Sprintf("write %dm", count)
	case "hour", "hr":
		return hours(1, "")
	case "d", "day", "daily":
		return hours(24, "day")
	case "w", "week", "weekly":
		return hours(7*24, "week")
	case "mo", "month", "monthly":
		return hours(30*24, "month")
	case "y", "year":
		return "write month, or 8760h for any 365 days"
	}
	return windowRemedy
}

// calendar reads the zone of a day, week or month, and where a week or month begins.
func (r *reader) calendar(p draft, unit limit.Unit) limit.Window {
	zone := time.UTC
	if n := p.found["timezone"]; n != nil {
		if text, ok := r.text(n, timezoneRemedy); ok {
			zone = valueOf(r, n, text, parseZone)
		}
	}
	n := p.found["anchor"]
	text := ""
	if n != nil {
		var ok bool
		if text, ok = r.text(n, "write a day of the month from 1 to 28, or of the week from mon to sun"); !ok {
			return limit.Window{}
		}
	}
	switch unit {
	case limit.Week:
		first := int(time.Monday)
		if n != nil {
			first = slices.Index(weekdays, r.word(n, weekdays))
		}
		return limit.Weeks(zone, time.Weekday(max(first, 0)))
	case limit.Month:
		day := 1
		if n != nil {
			day = valueOf(r, n, text, parseAnchor)
		}
		w, err := limit.Months(zone, day)
		if err != nil {
			return limit.Window{} // which was said
		}
		return w
	default:
		if n != nil {
			r.refuseName(n, faultf("remove it: a day begins at its zone's midnight", "anchor is for weeks and months"))
		}
		return limit.Days(zone)
	}
}

func parseAnchor(text string) (int, *fault) {
	const remedy = "write a day from 1 to 28, which every month has"
	day, err := strconv.Atoi(text)
	switch {
	case slices.Contains(weekdays, text):
		return 0, faultf("write a day from 1 to 28, or window: week", "a month does not begin on a day of the week, %s", text)
	case err != nil || strconv.Itoa(day) != text:
		return 0, faultf(remedy, "%s is no day of the month", shown(text))
	case day < 1 || day > limit.MaxAnchor:
		return 0, faultf(remedy, "the anchor %d is not in 1 to %d", day, limit.MaxAnchor)
	}
	return day, nil
}

// parseZone reads a time zone by its name in the database. What a host calls its own zone is none: another host has another.
func parseZone(text string) (*time.Location, *fault) {
	const letters = tierLetters + "/+"
	bad := faultf(timezoneRemedy, "%s is no time zone", shown(text))
	if text == "" || len(text) > maxName || strings.Trim(text, letters) != "" {
		return time.UTC, bad
	}
	for _, own := range []string{"Local", "localtime", "posix/", "right/", "posixrules"} {
		if strings.HasPrefix(text, own) {
			return time.UTC, bad
		}
	}
	zone, err := time.LoadLocation(text)
	if err != nil {
		return time.UTC, bad
	}
	return zone, nil
}

// maxDelay reads how long a request may wait for its turn.
func (r *reader) maxDelay(p draft) {
	n := p.found["max_delay"]
	if n == nil || p.Algorithm != limit.TokenBucket {
		return
	}
	text, ok := r.text(n, "write a duration such as 5s, or 0s for none")
	if !ok {
		return
	}
	p.MaxDelay = valueOf(r, n, text, func(text string) (time.Duration, *fault) { return parseWait(text, MaxDelay) })
}

// idleDelay warns of a delay in which no token comes: nobody would ever wait.
func (r *reader) idleDelay(p draft) {
	if p.MaxDelay == 0 || p.Budget.Rate == 0 {
		return
	}
	if one := p.Budget.TimeTo(limit.MicroPerToken); limit.Micros(p.MaxDelay.Microseconds()) < one {
		r.warn(p.found["max_delay"], faultf("raise it to "+(time.Duration(one)*time.Microsecond).Round(time.Millisecond).String()+" or more, or remove it",
			"a token takes longer to come than max_delay, so that hardly anybody waits for one"))
	}
}

func zeroDelay(text string) bool { return text == "0s" || text == "0" }

// lengthOf returns a fixed window's length.
func lengthOf(w limit.Window) time.Duration { return time.Duration(w.Length()) * time.Microsecond }

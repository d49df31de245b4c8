package limit

import (
	"errors"
	"fmt"
	"time"
)

// Unit is what a [Window] is measured in.
type Unit uint8

// The units: a fixed length, or a calendar's day, week or month in a time zone.
const (
	Fixed Unit = iota
	Day
	Week
	Month
)

// String returns u's name in the policy document.
func (u Unit) String() string { return [...]string{"fixed", "day", "week", "month"}[u] }

const (
	// MinWindow is the shortest window of a fixed length.
	MinWindow = time.Millisecond
	// MaxWindow is the longest.
	MaxWindow = 366 * 24 * time.Hour
	// MaxAnchor is the last day of the month that every month has.
	MaxAnchor = 28
)

// Errors of windows that cannot be.
var (
	ErrWindowLength = fmt.Errorf("a window is from %s to %s long, in whole microseconds", MinWindow, MaxWindow)
	ErrAnchor       = errors.New("a month's anchor is a day from 1 to 28, which every month has")
)

// Window divides time: each instant is in exactly one window, from its start, included, to the next one's, excluded. The zero
// value is no window.
//
// A calendar's window starts at its zone's first instant of its first date. Where clocks are put forward over midnight that is
// not 00:00, where they are put back over midnight it is the first 00:00 of two, and where the zone skips a date (Pacific/Apia,
// 2011-12-30) that date has no window.
type Window struct {
	unit   Unit
	length Micros
	zone   *time.Location
	anchor int // of months the day, of weeks the time.Weekday
}

// Every returns windows of a fixed length, aligned to 1970-01-01T00:00Z.
func Every(length time.Duration) (Window, error) {
	if length < MinWindow || length > MaxWindow || length%time.Microsecond != 0 {
		return Window{}, ErrWindowLength
	}
	return Window{unit: Fixed, length: Micros(length.Microseconds())}, nil
}

// Days returns the days of zone; nil is UTC.
func Days(zone *time.Location) Window { return Window{unit: Day, zone: zoneOr(zone)} }

// Weeks returns the weeks of zone that begin on first; a nil zone is UTC.
func Weeks(zone *time.Location, first time.Weekday) Window {
	return Window{unit: Week, zone: zoneOr(zone), anchor: int(first) % daysOfWeek}
}

// Months returns the months of zone that begin on a day of the calendar's month, 1 to [MaxAnchor]; a nil zone is UTC.
func Months(zone *time.Location, anchor int) (Window, error) {
	if anchor < 1 || anchor > MaxAnchor {
		return Window{}, ErrAnchor
	}
	return Window{unit: Month, zone: zoneOr(zone), anchor: anchor}, nil
}

func zoneOr(zone *time.Location) *time.Location {
	if zone == nil {
		return time.UTC
	}
	return zone
}

const daysOfWeek = 7

// IsZero tells whether w is no window.
func (w Window) IsZero() bool { return w.unit == Fixed && w.length == 0 }

// Unit returns what w is measured in.
func (w Window) Unit() Unit { return w.unit }

// Length returns how long a window of a fixed length is, 0 for a calendar's.
func (w Window) Length() Micros { return w.length }

// Longest returns a length that no window of w exceeds, for how long a record of one is kept: zones have put a date twice, so
// that a day may have 48 hours.
func (w Window) Longest() Micros {
	const day = 24 * 60 * 60 * MicrosPerSecond
	switch w.unit {
	case Day:
		return 2 * day
	case Week:
		return (daysOfWeek + 1) * day
	case Month:
		return 32 * day
	default:
		return w.length
	}
}

// Seconds returns the nominal length of the window that at is in, in whole seconds rounded up, for a person and for headers:
// clocks that are put forward or back do not change it.
func (w Window) Seconds(at time.Time) int64 {
	const day = 24 * 60 * 60
	switch w.unit {
	case Day:
		return day
	case Week:
		return daysOfWeek * day
	case Month:
		first := w.period(at)
		return int64(w.next(first).midnight().Sub(first.midnight()) / time.Second)
	default:
		return int64((w.length + MicrosPerSecond - 1) / MicrosPerSecond)
	}
}

// Start returns the start of the window that at is in. at is from 1970 on.
func (w Window) Start(at time.Time) time.Time {
	if w.unit == Fixed {
		return time.UnixMicro(at.UnixMicro() / int64(w.length) * int64(w.length)).UTC()
	}
	return w.first(w.period(at))
}

// Next returns the start of the window after the one that at is in.
func (w Window) Next(at time.Time) time.Time {
	if w.unit == Fixed {
		return time.UnixMicro((at.UnixMicro()/int64(w.length) + 1) * int64(w.length)).UTC()
	}
	date := w.next(w.period(at))
	for !w.first(date).After(at) { // the zone skipped all of a window
		date = w.next(date)
	}
	return w.first(date)
}

// String writes w so that different windows have different texts: "1m0s", "day Europe/Rome", "week mon UTC", "month 15 UTC".
func (w Window) String() string {
	switch w.unit {
	case Day:
		return "day " + w.zone.String()
	case Week:
		return "week " + time.Weekday(w.anchor).String() + " " + w.zone.String()
	case Month:
		return fmt.Sprintf("month %d %s", w.anchor, w.zone)
	default:
		return (time.Duration(w.length) * time.Microsecond).String()
	}
}

// Equal tells whether w and v divide time alike.
func (w Window) Equal(v Window) bool {
	return w.unit == v.unit && w.length == v.length && w.anchor == v.anchor && (w.zone == v.zone || w.String() == v.String())
}

// date is a day of the calendar.
type date struct {
	year  int
	month time.Month
	day   int
}

func dateOf(t time.Time) date {
	year, month, day := t.Date()
	return date{year, month, day}
}

// midnight is 00:00 of d on a clock that shows UTC.
func (d date) midnight() time.Time { return time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC) }

// plus returns the date some days later.
func (d date) plus(days int) date { return dateOf(d.midnight().AddDate(0, 0, days)) }

// period returns the first date of the window that at is in: the one by the zone's clocks, or a later one that has begun
// already, where clocks were put back over its midnight.
func (w Window) period(at time.Time) date {
	d := dateOf(at.In(w.zone))
	switch w.unit {
	case Week:
		d = d.plus(-((int(d.midnight().Weekday()) - w.anchor + daysOfWeek) % daysOfWeek))
	case Month:
		if d.day < w.anchor {
			d.month--
		}
		d = dateOf(date{d.year, d.month, w.anchor}.midnight())
	default:
	}
	for next := w.next(d); !w.first(next).After(at); next = w.next(d) {
		d = next
	}
	return d
}

// next returns the first date of the window after the one whose first date is d.
func (w Window) next(d date) date {
	switch w.unit {
	case Week:
		return d.plus(daysOfWeek)
	case Month:
		return dateOf(date{d.year, d.month + 1, d.day}.midnight())
	default:
		return d.plus(1)
	}
}

// reach is more than any zone's clocks have been away from UTC.
const reach = 26 * time.Hour

// first returns the first instant at which the zone's clocks have reached d, whatever they show afterwards. It goes through the
// times between two changes of the zone's offset: in each of them clocks show UTC and an offset.
func (w Window) first(d date) time.Time {
	midnight := d.midnight()
	at := midnight.Add(-reach).In(w.zone)
	for {
		_, offset := at.Zone()
		reached := midnight.Add(-time.Duration(offset) * time.Second)
		if reached.Before(at) {
			reached = at
		}
		_, end := at.ZoneBounds()
		if end.IsZero() || reached.Before(end) {
			return reached.UTC()
		}
		at = end
	}
}

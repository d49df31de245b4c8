package admit

// Waiting counts the requests that wait now, and the keys that they wait at.
func (a *Admitter) Waiting() (requests, keys int) {
	for i := range a.waiters.slots {
		s := &a.waiters.slots[i]
		s.mu.Lock()
		keys += len(s.mu.waiting)
		s.mu.Unlock()
	}
	return int(a.waiters.total.Load()), keys
}

// LocalKeys counts the keys that decide locally.
func (a *Admitter) LocalKeys() int {
	a.local.mu.Lock()
	defer a.local.mu.Unlock()
	return a.local.mu.parts.Len()
}

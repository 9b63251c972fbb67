package fair

// Known returns the number of remembered keys on the first level.
func (t *Turns) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.root.children)
}

// Known returns the number of remembered tenants.
func (s *Shares) Known() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tenants)
}

// Known returns the number of remembered keys.
func (b *Buckets) Known() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.of)
}

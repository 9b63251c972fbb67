package fair

// Known returns of how many something is remembered.
func (t *Turns) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.root.children)
}

// Known returns how many tenants are remembered.
func (s *Shares) Known() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tenants)
}

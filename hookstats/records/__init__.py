"""What one step saw: columnar records of every site, and what is made of them."""

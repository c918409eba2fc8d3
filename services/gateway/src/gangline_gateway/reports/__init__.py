"""Reports over a period: what was asked for, what was held, what it brought, who waited."""

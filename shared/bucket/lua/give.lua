
return verbs_of
